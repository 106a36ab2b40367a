"""The reference's votes: mix.h in plain Python, with the same doubles computed in the same order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from das.drafter import options as constants
from das.drafter.native import SIZES

VOTE_RATE, LATE_RATE = 0.005, 0.01
BEST, VARIETIES = 4, 8
LN2 = 0.6931471805599453


@dataclass(eq=False)
class Text:
    """A text that occurrences can be found in. Only tokens from index `context` on count as continuations."""

    tokens: list[int]
    context: int
    store_key: str = ""
    history_tick: int | None = None  # in which it finished; None while live
    remembered: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # by index: tokens and levels, if known

    @property
    def length(self) -> int:
        return len(self.tokens) - self.context


@dataclass
class Occurrence:
    """An occurrence of the context's end. Its next token is text.tokens[index]."""

    text: Text
    index: int
    match: int  # tokens before it that equal the context's end
    source: int
    cross_problem: bool  # found in another problem's text
    bucket: int = 0  # of the match length; this and the rank are set by `set_ranks`
    rank: int = 0

    @property
    def token(self) -> int:
        return self.text.tokens[self.index]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The distribution of its token; empty: unknown."""
        return self.text.remembered.get(self.index, [])


@dataclass
class Mixed:
    """One drafted position as it was mixed: what `Mixture.learn` (reference_recall.py) needs."""

    votes: list[tuple[int, int, int, int, int]]  # of each occurrence: token, cross_problem, bucket, source, rank
    top: int  # bucket of the longest match
    variety: int  # number of distinct tokens, capped
    tokens: list[int]  # the best ones
    features: list[list[float]]
    none_log: float
    probs: list[float]
    none_prob: float
    occurrences: list[Occurrence]
    likeliest: int
    likeliest_prob: float  # corrected
    nearest: Occurrence | None = None  # the occurrence with the longest match
    unlisted: float = 0.0  # the log of what its distribution leaves to other tokens
    pairs: list[list[tuple[int, int]]] = field(default_factory=list)  # of each occurrence


class Votes:
    """The weights of votes, and what they learn from emitted tokens."""

    def __init__(self, prior: dict[str, list[float]]) -> None:
        self._weights = {name: _nested(values, SIZES[name]) for name, values in prior.items()}

    def _weight(self, cross_problem: int, bucket: int, source: int, rank: int) -> float:
        w = self._weights
        return w["match"][cross_problem][bucket] * w["source"][source] * w["rank"][rank]

    def _corrected(self, position: int, probs: list[float]) -> tuple[int, float]:
        """The likeliest token's place, and its probability at a position of the draft, with corrected odds."""
        best = max(range(len(probs)), key=lambda b: (probs[b], -b))
        late = self._weights["late"]
        odds = probs[best] * late[min(position, len(late) - 1)]
        return best, odds / (odds + (1.0 - probs[best]))

    def learn_late(self, position: int, prob: float, accepted: bool) -> None:
        """The gradient step for a position's correction."""
        self._weights["late"][position] *= 1.0 + LATE_RATE * (accepted - prob)

    def _learn_votes(self, m: Mixed, correct: list[float]) -> None:
        """Take one step up the gradient of the votes' log P(token). correct: the part of each vote that went to it."""
        w = self._weights
        weights = [self._weight(*factors) for _, *factors in m.votes]
        none = everything = w["none"][m.top][m.variety]
        correct_weight = 0.0
        for weight, part in zip(weights, correct, strict=True):
            everything += weight
            correct_weight += weight * part
        scale = VOTE_RATE / everything
        bonus = VOTE_RATE / correct_weight if correct_weight > 0.0 else 0.0
        for weight, part, (_, cross_problem, bucket, source, rank) in zip(weights, correct, m.votes, strict=True):
            step = 1.0 + weight * (part * bonus - scale)
            w["match"][cross_problem][bucket] *= step
            w["source"][source] *= step
            w["rank"][rank] *= step
        w["none"][m.top][m.variety] *= 1.0 + ((0.0 if correct_weight > 0.0 else VOTE_RATE) - none * scale)


def set_ranks(occurrences: list[Occurrence]) -> None:
    """Set the buckets and ranks of occurrences, newest first. Those in other problems count as one bucket of their
    own."""
    newer: dict[int, int] = {}
    for o in occurrences:
        o.bucket = bucket(o.match)
        group = -1 if o.cross_problem else o.bucket
        o.rank = _rank(newer.get(group, 0))
        newer[group] = newer.get(group, 0) + 1


def normalized(scores: list[float], none_score: float) -> tuple[list[float], float]:
    """The probabilities of tokens with these scores, and the probability of none of them."""
    highest = max([none_score, *scores])
    none_exp = exp_of(none_score - highest)
    exps = [exp_of(score - highest) for score in scores]
    total = none_exp
    for e in exps:
        total += e
    return [e / total for e in exps], none_exp / total


def _nested(values: Sequence[float], size: tuple[int, ...]) -> Any:
    """A flat list as nested lists of this size."""
    if len(size) == 1:
        return [float(v) for v in values]
    part = len(values) // size[0]
    return [_nested(values[i * part : (i + 1) * part], size[1:]) for i in range(size[0])]


def exp_of(x: float) -> float:
    """exp(x) for x <= 0, by the operations of exp_log.h."""
    x = max(x, -40.0)
    n = int(x * 1.4426950408889634 - 0.5)
    r = x - n * LN2
    p = 0.0
    for coefficient in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = p * r + coefficient
    return math.ldexp(p, n)


def log_of(x: float) -> float:
    """log(x) for x > 0, by the operations of exp_log.h."""
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = m + m, e - 1
    s = (m - 1.0) / (m + 1.0)
    p = 0.0
    for coefficient in (1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0):
        p = p * (s * s) + coefficient
    return e * LN2 + (s + s) * p


def bucket(match: int) -> int:
    """Match lengths 0 to 8 have a bucket each; then 10, 12, 16, 20, 24 and 31 are upper ends; 32 has the last."""
    return match if match <= 8 else 9 + sum(match > end for end in (10, 12, 16, 20, 24, 31))


def _rank(newer: int) -> int:
    """The rank of an occurrence by how many newer ones its bucket has."""
    return newer if newer < 6 else 5 + sum(newer >= start for start in (6, 8, 12, 16, 24))


def match_length(before: list[int], context: list[int]) -> int:
    """How many tokens the ends of two texts share, up to MAX_MATCH."""
    limit = min(len(before), len(context), constants.MAX_MATCH)
    return next((m for m in range(limit) if before[-1 - m] != context[-1 - m]), limit)
