"""The reference's mixture: mix.h in plain Python, with the same doubles computed in the same order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from das.drafter import constants
from das.drafter.prior import PRIOR, SIZES

VOTE_RATE, MIX_RATE, LATE_RATE = 0.005, 0.002, 0.01
BEST, VARIETIES = 4, 8
COUNTED, COUNTED_OWN = (1, 2, 3, 4, 6, 9, 14), (1, 2, 3, 5)  # match lengths at which occurrences are counted
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
    bucket: int = 0  # of the match length; this and the rank are set by `Mixture.mix`
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
    """One drafted position as it was mixed: what `Mixture.learn` needs."""

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
    children: list[tuple[int, float]]  # the best tokens and their corrected probabilities, likeliest first
    after: dict[int, Mixed] = field(default_factory=dict)  # by drafted token: the position behind it
    nearest: Occurrence | None = None  # drafts with the noise alone: the occurrence with the longest match
    unlisted: float = 0.0  # the log of what its distribution leaves to other tokens
    pairs: list[list[tuple[int, int]]] = field(default_factory=list)  # of each occurrence


class Mixture:
    """The voting and mixing weights: they turn occurrences into probabilities and learn from emitted tokens."""

    def __init__(self) -> None:
        self._weights = {name: _nested(values, SIZES[name]) for name, values in PRIOR.items()}

    def _weight(self, cross_problem: int, bucket: int, source: int, rank: int) -> float:
        w = self._weights
        return w["match"][cross_problem][bucket] * w["source"][source] * w["rank"][rank]

    def mix(self, occurrences: list[Occurrence], position: int) -> Mixed:
        """Probabilities of the BEST most voted next tokens, and of none of them, at a position of the draft."""
        everything = 0.0
        share: dict[int, float] = {}
        newest = _set_ranks(occurrences)
        for o in occurrences:
            weight = self._weight(o.cross_problem, o.bucket, o.source, o.rank)
            everything += weight
            share[o.token] = share.get(o.token, 0.0) + weight
        in_problem = [o for o in occurrences if not o.cross_problem]
        top = max((o.bucket for o in in_problem), default=0)
        variety = min(len(share), VARIETIES - 1)
        none = self._weights["none"][top][variety]
        everything += none
        v = self._weights["mix"][top]
        none_log = log_of(none / everything)
        own_token = next((o.token for o in in_problem if o.source == 0), None)
        tokens = sorted(share, key=lambda t: -share[t])[:BEST]
        features: list[list[float]] = []
        for token in tokens:
            longest = max(o.match for o in occurrences if o.token == token)
            row = [log_of(share[token] / everything), float(token in newest), float(token == own_token)]
            row += [math.log(1.0 + longest) - 1.5, float(not features), float(_bucket(longest) == top)]
            row += _count_features(in_problem, COUNTED, token)
            row += _count_features([o for o in in_problem if o.source == 0], COUNTED_OWN, token)
            features.append(row)
        probs, none_prob = _softmax(v, features, v[0] * none_log + v[-1])
        votes = [(o.token, int(o.cross_problem), o.bucket, o.source, o.rank) for o in occurrences]
        best, corrected = self._corrected(position, probs)
        children = sorted(zip(tokens, corrected, strict=True), key=lambda child: -child[1])
        mixed = (votes, top, variety, tokens, features, none_log, probs, none_prob, occurrences)
        return Mixed(*mixed, tokens[best], corrected[best], children)

    def _corrected(self, position: int, probs: list[float]) -> tuple[int, list[float]]:
        """The likeliest token's place, and the tokens' probabilities at a position of the draft.

        The odds of the likeliest token against everything else are corrected.
        """
        best = max(range(len(probs)), key=lambda b: (probs[b], -b))
        late = self._weights["late"]
        odds = probs[best] * late[min(position, len(late) - 1)]
        total = odds + (1.0 - probs[best])
        return best, [(odds if b == best else prob) / total for b, prob in enumerate(probs)]

    def learn_late(self, position: int, prob: float, accepted: bool) -> None:
        """The gradient step for a position's correction."""
        self._weights["late"][position] *= 1.0 + LATE_RATE * (accepted - prob)

    def learn(self, m: Mixed, token: int) -> None:
        """Take one step up the gradient of log P(token)."""
        v = self._weights["mix"][m.top]
        for best, features, prob in zip(m.tokens, m.features, m.probs, strict=True):
            g = MIX_RATE * ((best == token) - prob)
            for i, feature in enumerate(features):
                v[i] += g * feature
        g = MIX_RATE * ((token not in m.tokens) - m.none_prob)
        v[0] += g * m.none_log
        v[-1] += g
        self._learn_votes(m, [float(next_token == token) for next_token, *_ in m.votes])

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


def _set_ranks(occurrences: list[Occurrence]) -> set[int]:
    """Set the buckets and ranks of occurrences, newest first; returns the tokens that are the newest of a bucket.

    Occurrences in other problems count as one bucket of their own.
    """
    newer: dict[int, int] = {}
    newest: set[int] = set()
    for o in occurrences:
        o.bucket = _bucket(o.match)
        group = -1 if o.cross_problem else o.bucket
        o.rank = _rank(newer.get(group, 0))
        if not newer.get(group):
            newest.add(o.token)
        newer[group] = newer.get(group, 0) + 1
    return newest


def _count_features(occurrences: list[Occurrence], levels: Sequence[int], token: int) -> list[float]:
    """For each match length: how many occurrences that reach it continue with the token, and whether all of them do."""
    row = []
    for level in levels:
        total = sum(o.match >= level for o in occurrences)
        count = sum(o.match >= level for o in occurrences if o.token == token)
        row.append(math.log(1.0 + count) if count else -0.5 * math.log(1.0 + total))
        row.append(float(total > 0 and count == total))
    return row


def _softmax(v: list[float], features: list[list[float]], none_score: float) -> tuple[list[float], float]:
    """Probabilities of the tokens with these features under weights v, and the probability of none of them."""
    scores = []
    for row in features:
        score = 0.0
        for weight, feature in zip(v, row, strict=False):
            score += weight * feature
        scores.append(score)
    return normalized(scores, none_score)


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


def _bucket(match: int) -> int:
    """Match lengths 0 to 8 have a bucket each; then 10, 12, 16, 20, 24 and 31 are upper ends; 32 has the last."""
    return match if match <= 8 else 9 + sum(match > end for end in (10, 12, 16, 20, 24, 31))


def _rank(newer: int) -> int:
    """The rank of an occurrence by how many newer ones its bucket has."""
    return newer if newer < 6 else 5 + sum(newer >= start for start in (6, 8, 12, 16, 24))


def match_length(before: list[int], context: list[int]) -> int:
    """How many tokens the ends of two texts share, up to MAX_MATCH."""
    limit = min(len(before), len(context), constants.MAX_MATCH)
    return next((m for m in range(limit) if before[-1 - m] != context[-1 - m]), limit)
