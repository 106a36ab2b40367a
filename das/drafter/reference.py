"""The history drafter by brute force: no index, no native code; every answer scans every token of the problem.

It is the oracle of the tests and shares only constants and option checks with `HistoryDrafter`, whose docstrings
describe the methods. Answers are equal to the native core's to the last bit: both compute the same doubles in the same
order, weights learned on the way included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from das.drafter import constants
from das.drafter.draft import Draft
from das.drafter.options import DEFAULTS, DrafterOptions
from das.drafter.prior import PRIOR, SIZES

VOTE_RATE, MIX_RATE = 0.005, 0.002
BEST, RANKS, VARIETIES, TRACE = 4, 11, 8, 8
COUNTED, COUNTED_OWN = (1, 2, 3, 4, 6, 9, 14), (1, 2, 3, 5)
OTHER_PROBLEM = 18
LN2 = 0.6931471805599453


@dataclass(eq=False)
class _Text:
    """A text occurrences can be found in. Only tokens from index `context` on count as continuations."""

    tokens: list[int]
    context: int
    key: str = ""
    clock: int | None = None  # None while live

    @property
    def length(self) -> int:
        return len(self.tokens) - self.context


@dataclass
class _Found:
    """An occurrence: the next token is text.tokens[index]. other: found in another problem's text."""

    text: _Text
    index: int
    match: int
    source: int
    other: bool
    bucket: int = 0
    rank: int = 0

    @property
    def token(self) -> int:
        return self.text.tokens[self.index]


@dataclass
class _Mixed:
    """One drafted position as it was mixed: what `learn` needs."""

    found: list[tuple[int, int, int, int, int]]  # token, other, bucket, source, rank
    top: int
    variety: int
    tokens: list[int]
    features: list[list[float]]
    none_log: float
    probs: list[float]
    none: float
    drafted: int = -1


@dataclass(eq=False)
class _Request:
    key: str
    text: _Text
    prompt: tuple[int, ...]
    trace: list[_Mixed] = field(default_factory=list)


@dataclass
class _Problem:
    """Every (text, index) in the order the token was stored, and the live prompts with their number of requests."""

    log: list[tuple[_Text, int]] = field(default_factory=list)
    prompts: dict[tuple[int, ...], tuple[_Text, int]] = field(default_factory=dict)


class ReferenceDrafter:
    """Same methods and answers as `HistoryDrafter`, slowly. It neither saves nor loads."""

    def __init__(
        self,
        *,
        window: int = DEFAULTS.window,
        scope: str = DEFAULTS.scope,
        min_prob: float = DEFAULTS.min_prob,
        max_candidates: int = DEFAULTS.max_candidates,
        cross_problem_tokens: int = DEFAULTS.cross_problem_tokens,
    ) -> None:
        options = DrafterOptions(window, scope, min_prob, max_candidates, cross_problem_tokens)
        self.window = options.history_window
        self.scope = scope
        self.min_prob = min_prob
        self.max_candidates = max_candidates
        self.cross_problem_tokens = options.shared_tokens
        self.clock = 0
        self._problems: dict[str, _Problem] = {}
        self._requests: dict[str, _Request] = {}
        self._shared: list[_Text] = []  # finished texts that other problems see, oldest first
        self._weights = {name: _shaped(values, SIZES[name]) for name, values in PRIOR.items()}

    def begin(self, request: str, problem: str, prompt: Sequence[int]) -> None:
        if request in self._requests:
            raise ValueError(f"request {request!r} has already begun")
        key = {"own": f"request {request}", "global+request": "all"}.get(self.scope, f"problem {problem}")
        store = self._problems.setdefault(key, _Problem())
        whole = tuple(int(t) for t in prompt)
        if self.scope != "problem" and whole:
            if whole not in store.prompts:
                text = _Text(list(whole), 0)
                store.prompts[whole] = (text, 0)
                store.log += [(text, i) for i in range(len(whole))]
            text, users = store.prompts[whole]
            store.prompts[whole] = (text, users + 1)
        context = list(whole[-constants.PROMPT_CONTEXT :])
        self._requests[request] = _Request(key, _Text(context, len(context), key), whole)

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        live = self._requests[request]
        for mixed, token in zip(live.trace, tokens, strict=False):
            self._learn(mixed, int(token))
            if mixed.drafted != int(token):
                break
        live.trace = []
        for token in tokens:
            here = (live.text, len(live.text.tokens))
            self._problems[live.key].log.append(here)
            live.text.tokens.append(int(token))

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self.observe(request, new)

    def end(self, request: str, keep: bool = True) -> None:
        live = self._requests.pop(request)
        store = self._problems[live.key]
        if live.prompt in store.prompts:
            text, users = store.prompts[live.prompt]
            store.prompts[live.prompt] = (text, users - 1)
            if users == 1:
                del store.prompts[live.prompt]
                store.log = [(t, i) for t, i in store.log if t is not text]
        live.text.clock = self.clock
        if not (keep and self.window):
            store.log = [(t, i) for t, i in store.log if t is not live.text]
            return
        mine = [t for t in self._shared if t.key == live.key]
        if (
            live.text.length > self.cross_problem_tokens
            or sum(t.clock == self.clock for t in mine) == constants.SHARED_TEXTS
        ):
            return
        if len(mine) == constants.SHARED_TEXTS:
            self._shared.remove(mine[0])
        self._shared.append(live.text)
        while sum(t.length for t in self._shared) > self.cross_problem_tokens:
            self._shared.pop(0)

    def end_step(self, clock: int) -> None:
        self.clock = clock
        for store in self._problems.values():
            store.log = [(t, i) for t, i in store.log if self._inside(t)]
        self._shared = [t for t in self._shared if self._inside(t)]

    def _inside(self, text: _Text) -> bool:
        return text.clock is None or text.clock > self.clock - self.window

    @property
    def history_tokens(self) -> int:
        return sum(text.clock is not None for store in self._problems.values() for text, _ in store.log)

    @property
    def live_tokens(self) -> int:
        return sum(len(r.text.tokens) - r.text.context for r in self._requests.values())

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        floors = [0.0] * len(requests) if floors is None else floors
        asked = zip(requests, limits, floors, strict=True)
        return [self._draft(self._requests[r], limit, max(floor, self.min_prob)) for r, limit, floor in asked]

    # ---- drafting ----

    def _draft(self, request: _Request, limit: int, floor: float) -> Draft:
        draft = Draft([], [])
        request.trace = []
        context = request.text.tokens[-constants.MAX_MATCH :]
        found: list[_Found] = []
        reach = 1.0
        while len(draft.tokens) < limit:
            if not found:
                few = [min(n, constants.FALLBACK_VISITS) for n in constants.VISITS]
                most = constants.FALLBACK_VISITS if draft.tokens else self.max_candidates
                found = self._gather(request, context, few if draft.tokens else constants.VISITS)
                found = found[: min(most, self.max_candidates)] + self._gather_others(request, context, few)
            if not found:
                break
            mixed = self._mix(found)
            best = max(range(len(mixed.probs)), key=lambda b: (mixed.probs[b], -b))
            token, prob = mixed.tokens[best], mixed.probs[best]
            if len(request.trace) < TRACE:
                mixed.drafted = token
                request.trace.append(mixed)
            reach *= prob
            if reach < floor:
                break
            draft.tokens.append(token)
            draft.probs.append(prob)
            context = [*context, token]
            found = [
                _Found(f.text, f.index + 1, min(f.match + 1, constants.MAX_MATCH), f.source, f.other)
                for f in found
                if f.token == token and f.index + 1 < len(f.text.tokens)
            ]
        return draft

    def _gather(self, request: _Request, context: list[int], visits: Sequence[int]) -> list[_Found]:
        """Occurrences of the context's end: longest order first, newest first within an order, each once."""
        matches = [
            _Found(text, i, _match(text.tokens[:i], context), self._source(request, text), False)
            for text, i in reversed(self._problems[request.key].log)
            if not (self.scope == "problem" and text is request.text)
        ]
        found: list[_Found] = []
        above = constants.MAX_MATCH + 1
        for order, most in reversed(list(zip(constants.ORDERS, visits, strict=True))):
            newest = [f for f in matches if f.match >= order][:most]
            found += [f for f in newest if f.match < above]
            above = order
        return found

    def _gather_others(self, request: _Request, context: list[int], visits: Sequence[int]) -> list[_Found]:
        """The same in the texts of other problems, without order 1; the own problem's texts take visits too."""
        matches = [
            _Found(text, i, min(i - text.context, _match(text.tokens[:i], context)), OTHER_PROBLEM, True)
            for text in reversed(self._shared)
            for i in reversed(range(text.context, len(text.tokens)))
        ]
        found: list[_Found] = []
        above = constants.MAX_MATCH + 1
        for order, most in list(zip(constants.ORDERS, visits, strict=True))[:0:-1]:
            newest = [f for f in matches if f.match >= order][:most]
            found += [f for f in newest if f.match < above and f.text.key != request.key]
            above = order
        return found[: constants.CROSS_PROBLEM_CANDIDATES]

    def _source(self, request: _Request, text: _Text) -> int:
        if text is request.text:
            return 0
        return 1 + min(0 if text.clock is None else self.clock - text.clock, OTHER_PROBLEM - 2)

    def _weight(self, other: int, bucket: int, source: int, rank: int) -> float:
        w = self._weights
        return w["match"][other][bucket] * w["source"][source] * w["rank"][rank]

    def _mix(self, found: list[_Found]) -> _Mixed:
        newer: dict[int, int] = {}
        newest: set[int] = set()
        everything = 0.0
        share: dict[int, float] = {}
        for f in found:
            f.bucket = _bucket(f.match)
            group = -1 if f.other else f.bucket
            f.rank = _rank(newer.get(group, 0))
            if not newer.get(group):
                newest.add(f.token)
            newer[group] = newer.get(group, 0) + 1
            weight = self._weight(f.other, f.bucket, f.source, f.rank)
            everything += weight
            share[f.token] = share.get(f.token, 0.0) + weight
        mine = [f for f in found if not f.other]
        top = max((f.bucket for f in mine), default=0)
        variety = min(len(share), VARIETIES - 1)
        none = self._weights["none"][top][variety]
        everything += none
        v = self._weights["mix"][top]
        none_log = _log(none / everything)
        own = next((f.token for f in mine if f.source == 0), None)
        tokens = sorted(share, key=lambda t: -share[t])[:BEST]
        features: list[list[float]] = []
        for token in tokens:
            longest = max(f.match for f in found if f.token == token)
            row = [_log(share[token] / everything), float(token in newest), float(token == own)]
            row += [math.log(1.0 + longest) - 1.5, float(not features), float(_bucket(longest) == top)]
            for texts, levels in ((mine, COUNTED), ([f for f in mine if f.source == 0], COUNTED_OWN)):
                for level in levels:
                    total = sum(f.match >= level for f in texts)
                    count = sum(f.match >= level for f in texts if f.token == token)
                    row.append(math.log(1.0 + count) if count else -0.5 * math.log(1.0 + total))
                    row.append(float(total > 0 and count == total))
            features.append(row)
        none_score = v[0] * none_log + v[-1]
        scores = []
        for f_ in features:
            score = 0.0
            for weight, feature in zip(v, f_, strict=False):
                score += weight * feature
            scores.append(score)
        highest = max([none_score, *scores])
        none_exp = _exp(none_score - highest)
        exps = [_exp(score - highest) for score in scores]
        total_exp = none_exp
        for e in exps:
            total_exp += e
        keep = [(f.token, int(f.other), f.bucket, f.source, f.rank) for f in found]
        probs = [e / total_exp for e in exps]
        return _Mixed(keep, top, variety, tokens, features, none_log, probs, none_exp / total_exp)

    def _learn(self, m: _Mixed, token: int) -> None:
        w, v = self._weights, self._weights["mix"][m.top]
        for best, features, prob in zip(m.tokens, m.features, m.probs, strict=True):
            g = MIX_RATE * ((best == token) - prob)
            for i, feature in enumerate(features):
                v[i] += g * feature
        g = MIX_RATE * ((token not in m.tokens) - m.none)
        v[0] += g * m.none_log
        v[-1] += g
        weights = [self._weight(*where) for _, *where in m.found]
        none = everything = w["none"][m.top][m.variety]
        right = 0.0
        for weight, (next_token, *_) in zip(weights, m.found, strict=True):
            everything += weight
            if next_token == token:
                right += weight
        scale = VOTE_RATE / everything
        bonus = VOTE_RATE / right if right > 0.0 else 0.0
        for weight, (next_token, other, bucket, source, rank) in zip(weights, m.found, strict=True):
            step = 1.0 + weight * ((bonus if next_token == token else 0.0) - scale)
            w["match"][other][bucket] *= step
            w["source"][source] *= step
            w["rank"][rank] *= step
        w["none"][m.top][m.variety] *= 1.0 + ((0.0 if right > 0.0 else VOTE_RATE) - none * scale)


def _shaped(values: Sequence[float], size: tuple[int, ...]) -> Any:
    """A flat list as nested ones."""
    if len(size) == 1:
        return [float(v) for v in values]
    part = len(values) // size[0]
    return [_shaped(values[i * part : (i + 1) * part], size[1:]) for i in range(size[0])]


def _exp(x: float) -> float:
    """exp(x), x <= 0: the operations of exp_log.h."""
    x = max(x, -40.0)
    n = int(x * 1.4426950408889634 - 0.5)
    r = x - n * LN2
    p = 0.0
    for coefficient in (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        p = p * r + coefficient
    return math.ldexp(p, n)


def _log(x: float) -> float:
    """log(x), x > 0: the operations of exp_log.h."""
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = m + m, e - 1
    s = (m - 1.0) / (m + 1.0)
    p = 0.0
    for coefficient in (1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0):
        p = p * (s * s) + coefficient
    return e * LN2 + (s + s) * p


def _bucket(match: int) -> int:
    """Match lengths 0 to 8 one by one, then 10, 12, 16, 20, 24 and 31 as upper ends, then 32."""
    return match if match <= 8 else 9 + sum(match > end for end in (10, 12, 16, 20, 24, 31))


def _rank(newer: int) -> int:
    return newer if newer < 6 else 5 + sum(newer >= start for start in (6, 8, 12, 16, 24))


def _match(before: list[int], context: list[int]) -> int:
    """How many tokens the ends of two texts share, up to MAX_MATCH."""
    longest = min(len(before), len(context), constants.MAX_MATCH)
    return next((m for m in range(longest) if before[-1 - m] != context[-1 - m]), longest)
