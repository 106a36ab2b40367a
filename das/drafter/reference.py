"""The history drafter by brute force: no index, no native code; every answer scans every token of the problem.

It is the oracle of the tests and shares only constants and option checks with `HistoryDrafter`, whose docstrings
describe the methods. Tokens are equal to the native core's; probabilities too, since both add in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from das.drafter import history as constants
from das.drafter.history import Draft, check_options


@dataclass(eq=False)
class _Text:
    """A text occurrences can be found in. Only tokens from index `context` on count as continuations."""

    tokens: list[int]
    context: int
    clock: int | None = None  # None while live


@dataclass(eq=False)
class _Request:
    problem: str
    text: _Text
    prompt: tuple[int, ...]


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
        window: int = 16,
        scope: str = "problem+request",
        min_prob: float = 0.1,
        max_candidates: int = 32,
    ) -> None:
        check_options(window, scope, min_prob, max_candidates)
        self.window = window if scope in ("problem+request", "problem") else 0
        self.scope = scope
        self.min_prob = min_prob
        self.max_candidates = max_candidates
        self.clock = 0
        self._problems: dict[str, _Problem] = {}
        self._requests: dict[str, _Request] = {}

    def begin(self, request: str, problem: str, prompt: Sequence[int]) -> None:
        if request in self._requests:
            raise ValueError(f"request {request!r} has already begun")
        key = f"request {request}" if self.scope == "own" else f"problem {problem}"
        store = self._problems.setdefault(key, _Problem())
        whole = tuple(int(t) for t in prompt)
        if self.scope != "problem" and whole:
            if whole not in store.prompts:
                text = _Text(list(whole), 0)
                store.prompts[whole] = (text, 0)
                store.log += [(text, i) for i in range(len(whole))]
            text, users = store.prompts[whole]
            store.prompts[whole] = (text, users + 1)
        context = list(whole[-constants.MAX_MATCH :])
        self._requests[request] = _Request(key, _Text(context, len(context)), whole)

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        live = self._requests[request]
        for token in tokens:
            self._problems[live.problem].log.append((live.text, len(live.text.tokens)))
            live.text.tokens.append(int(token))

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self.observe(request, new)

    def end(self, request: str, keep: bool = True) -> None:
        live = self._requests.pop(request)
        store = self._problems[live.problem]
        if live.prompt in store.prompts:
            text, users = store.prompts[live.prompt]
            store.prompts[live.prompt] = (text, users - 1)
            if users == 1:
                del store.prompts[live.prompt]
                store.log = [(t, i) for t, i in store.log if t is not text]
        live.text.clock = self.clock
        if not (keep and self.window):
            store.log = [(t, i) for t, i in store.log if t is not live.text]

    def end_step(self, clock: int) -> None:
        self.clock = clock
        for store in self._problems.values():
            store.log = [(t, i) for t, i in store.log if t.clock is None or t.clock > clock - self.window]

    @property
    def history_tokens(self) -> int:
        return sum(text.clock is not None for store in self._problems.values() for text, _ in store.log)

    @property
    def live_tokens(self) -> int:
        return sum(len(r.text.tokens) - r.text.context for r in self._requests.values())

    def propose(self, requests: Sequence[str], limits: Sequence[int]) -> list[Draft]:
        return [self._draft(self._requests[r], limit) for r, limit in zip(requests, limits, strict=True)]

    def _draft(self, request: _Request, limit: int) -> Draft:
        draft = Draft([], [])
        context = request.text.tokens[-constants.MAX_MATCH :]
        found: list[tuple[_Text, int, int]] = []  # (text, index of the next token, match length)
        reach = 1.0
        while len(draft.tokens) < limit:
            if len(found) < min(constants.ENOUGH, self.max_candidates):
                found = self._gather(request, context)
            if not found:
                break
            token, prob = self._choose(found)
            reach *= prob
            if reach < self.min_prob:
                break
            draft.tokens.append(token)
            draft.probs.append(prob)
            context.append(token)
            found = [
                (text, i + 1, min(m + 1, constants.MAX_MATCH))
                for text, i, m in found
                if text.tokens[i] == token and i + 1 < len(text.tokens)
            ]
        return draft

    def _gather(self, request: _Request, context: list[int]) -> list[tuple[_Text, int, int]]:
        """Occurrences of the context's end: longest order first, newest first within an order, each once."""
        matches = [
            (text, i, _match(text.tokens[:i], context))
            for text, i in reversed(self._problems[request.problem].log)
            if not (self.scope == "problem" and text is request.text)
        ]
        found: list[tuple[_Text, int, int]] = []
        above = constants.MAX_MATCH + 1
        for order in reversed(constants.ORDERS):
            if len(found) >= min(constants.ENOUGH, self.max_candidates):
                break
            newest = [match for match in matches if match[2] >= order][: self.max_candidates]
            found = (found + [match for match in newest if match[2] < above])[: self.max_candidates]
            above = order
        return found

    def _choose(self, found: list[tuple[_Text, int, int]]) -> tuple[int, float]:
        """The likeliest next token and its probability; ties go to the one found first."""
        weighted = [(text.tokens[i], match, self._weight(text)) for text, i, match in found]
        best, best_prob = -1, -1.0
        for token in dict.fromkeys(token for token, _, _ in weighted):
            prob = 0.0
            for level in constants.LEVELS:
                here = [(t, w) for t, match, w in weighted if match >= level]
                total, count = sum(w for _, w in here), sum(w for t, w in here if t == token)
                distinct = len({t for t, _ in here})
                prior = constants.VARIETY * distinct * constants.AGE_WEIGHTS[0]
                if here:
                    prob = (count + prior * prob) * (1.0 / (total + prior))
            if prob > best_prob:
                best, best_prob = token, prob
        return best, best_prob

    def _weight(self, text: _Text) -> int:
        age = 0 if text.clock is None else self.clock - text.clock
        return constants.AGE_WEIGHTS[min(age, len(constants.AGE_WEIGHTS) - 1)]


def _match(before: list[int], context: list[int]) -> int:
    """How many tokens the ends of two texts share, up to MAX_MATCH."""
    longest = min(len(before), len(context), constants.MAX_MATCH)
    return next((m for m in range(longest) if before[-1 - m] != context[-1 - m]), longest)
