"""The history drafter by brute force: no index, no native code; every answer scans every token of the problem.

The tests use it as the oracle. It shares only constants, options and the prior weights with `HistoryDrafter`, whose
docstrings describe the methods. Its answers equal the native core's to the last bit, because both compute the same
doubles in the same order; the weights that both learn on the way are equal, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reference_mix import Mixed, Occurrence, Text, match_length
from reference_recall import Mixture, noise_key, pairs_beside

from das.drafter import options as constants
from das.drafter.drafter import Draft
from das.drafter.options import DEFAULTS, DrafterOptions

TRACE = 8  # drafted positions that are learned from
POSITIONS = 16  # drafted positions whose probabilities are corrected
CROSS_PROBLEM = 18  # source of occurrences in other problems


@dataclass(eq=False)
class _Request:
    store_key: str
    text: Text
    prompt: tuple[int, ...]
    mixture: Mixture
    seed: int | None  # of its noise, if drafts are made with it
    trace: list[Mixed] = field(default_factory=list)  # the positions of the last draft, to learn from


@dataclass
class _Store:
    """Every (text, index) in the order in which the tokens were stored, and each live prompt with its request count."""

    log: list[tuple[Text, int]] = field(default_factory=list)
    prompts: dict[tuple[int, ...], tuple[Text, int]] = field(default_factory=dict)

    def remove(self, text: Text) -> None:
        self.log = [(t, i) for t, i in self.log if t is not text]


class ReferenceDrafter:
    """Has the methods and gives the answers of `HistoryDrafter`, slowly. It cannot save or load."""

    def __init__(
        self,
        *,
        window: int = DEFAULTS.window,
        min_prob: float = DEFAULTS.min_prob,
        max_candidates: int = DEFAULTS.max_candidates,
        cross_problem_tokens: int = DEFAULTS.cross_problem_tokens,
        remember: str = DEFAULTS.remember,
    ) -> None:
        DrafterOptions(window, min_prob, max_candidates, cross_problem_tokens, remember)
        self.remembers = remember == "distributions"
        self.window = window
        self.min_prob = min_prob
        self.max_candidates = max_candidates
        self.cross_problem_tokens = cross_problem_tokens
        self.history_tick = 0
        self._stores: dict[str, _Store] = {}
        self._requests: dict[str, _Request] = {}
        self._shared: list[Text] = []  # finished texts that other problems see, oldest first
        self._mixture, self._noisy = Mixture(knows_noise=False), Mixture(knows_noise=True)

    def begin(self, request: str, problem: str, prompt: Sequence[int], seed: int | None = None) -> None:
        if request in self._requests:
            raise ValueError(f"request {request!r} has already begun")
        store = self._stores.setdefault(problem, _Store())
        prompt_key = tuple(int(t) for t in prompt)
        if prompt_key:
            if prompt_key not in store.prompts:
                text = Text(list(prompt_key), 0)
                store.prompts[prompt_key] = (text, 0)
                store.log += [(text, i) for i in range(len(prompt_key))]
            text, users = store.prompts[prompt_key]
            store.prompts[prompt_key] = (text, users + 1)
        context = list(prompt_key[-constants.PROMPT_CONTEXT :])
        text = Text(context, len(context), problem)
        if not self.remembers:
            seed = None
        mixture = self._mixture if seed is None else self._noisy
        self._requests[request] = _Request(problem, text, prompt_key, mixture, seed)

    def observe(self, request: str, tokens: Sequence[int], remembered: Sequence[list[int]] | None = None) -> None:
        live = self._requests[request]
        for position, (mixed, token) in enumerate(zip(live.trace[:POSITIONS], map(int, tokens), strict=False)):
            if position < TRACE:
                live.mixture.learn(mixed, token)
            live.mixture.learn_late(position, mixed.likeliest_prob, mixed.likeliest == token)
            if mixed.likeliest != token:
                break
        live.trace = []
        for i, token in enumerate(tokens):
            if remembered is not None and self.remembers:
                live.text.remembered[len(live.text.tokens)] = pairs_beside(int(token), remembered[i])
            self._stores[live.store_key].log.append((live.text, len(live.text.tokens)))
            live.text.tokens.append(int(token))

    def observe_batch(
        self,
        requests: Sequence[str],
        tokens: Sequence[Sequence[int]],
        remembered: Sequence[list[int]] | None = None,
    ) -> None:
        first = 0
        for request, new in zip(requests, tokens, strict=True):
            self.observe(request, new, None if remembered is None else remembered[first : first + len(new)])
            first += len(new)

    def end(self, request: str, keep: bool = True) -> None:
        live = self._requests.pop(request)
        store = self._stores[live.store_key]
        if live.prompt in store.prompts:
            text, users = store.prompts[live.prompt]
            store.prompts[live.prompt] = (text, users - 1)
            if users == 1:
                del store.prompts[live.prompt]
                store.remove(text)
        live.text.history_tick = self.history_tick
        if keep and self.window:
            self._share(live.text)
        else:
            store.remove(live.text)

    def _share(self, finished: Text) -> None:
        """Let other problems see a finished text; the oldest shared texts make room for it."""
        of_problem = [t for t in self._shared if t.store_key == finished.store_key]
        if finished.length > self.cross_problem_tokens:
            return
        if sum(t.history_tick == self.history_tick for t in of_problem) == constants.SHARED_TEXTS:
            return
        if len(of_problem) == constants.SHARED_TEXTS:
            self._shared.remove(of_problem[0])
        self._shared.append(finished)
        while sum(t.length for t in self._shared) > self.cross_problem_tokens:
            self._shared.pop(0)

    def move_window(self, history_tick: int) -> None:
        self.history_tick = history_tick
        for store in self._stores.values():
            store.log = [(t, i) for t, i in store.log if self._in_window(t)]
        self._shared = [t for t in self._shared if self._in_window(t)]

    def _in_window(self, text: Text) -> bool:
        return text.history_tick is None or text.history_tick > self.history_tick - self.window

    @property
    def history_tokens(self) -> int:
        return sum(text.history_tick is not None for store in self._stores.values() for text, _ in store.log)

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        floors = [0.0] * len(requests) if floors is None else floors
        rows = zip(requests, limits, floors, strict=True)
        return [self._draft(self._requests[r], limit, max(floor, self.min_prob)) for r, limit, floor in rows]

    # ---- drafting ----

    def _draft(self, request: _Request, limit: int, floor: float) -> Draft:
        draft = Draft([], [])
        request.trace = []
        reach = 1.0
        while len(draft.tokens) < limit:
            mixed = self._mix(request, draft.tokens)
            if mixed is None:
                break
            reach *= mixed.likeliest_prob
            if reach < floor:
                break
            draft.tokens.append(mixed.likeliest)
            draft.probs.append(mixed.likeliest_prob)
        return draft

    def _mix(self, request: _Request, path: list[int]) -> Mixed | None:
        """The position behind these drafted tokens; None without occurrences."""
        before = request.trace[-1] if path else None
        occurrences = _follow(before.occurrences, path[-1]) if before else []
        leaves = (
            request.mixture.knows_noise
            and before is not None
            and before.nearest is not None
            and before.nearest.token != path[-1]
        )
        if not occurrences or (leaves and len(occurrences) <= constants.AGREEING):
            context = [*request.text.tokens[-constants.MAX_MATCH :], *path]
            occurrences = self._look_up(request, context, is_first=not path)
        if not occurrences:
            return None
        position = request.text.length + len(path)
        key = 0 if request.seed is None else noise_key(request.seed, position)
        mixed = request.mixture.foresee(occurrences, len(path), key)
        request.trace.append(mixed)
        return mixed

    def _look_up(self, request: _Request, context: list[int], is_first: bool) -> list[Occurrence]:
        """Occurrences for a draft's first token, or for a later one where none agrees with the draft any more."""
        fallback = [min(n, constants.FALLBACK_VISITS) for n in constants.VISITS]
        most = constants.PLACES if request.mixture.knows_noise else 256
        visits = [min(n, most) for n in constants.VISITS] if is_first else fallback
        room = min(self.max_candidates, most if is_first else constants.FALLBACK_VISITS)
        in_problem = self._in_problem(request, context, visits)[:room]
        return in_problem + self._in_other_problems(request, context, fallback)

    def _in_problem(self, request: _Request, context: list[int], visits: Sequence[int]) -> list[Occurrence]:
        """Occurrences of the context's end, each once: longest order first, newest first within an order."""
        matches = [
            Occurrence(text, i, match_length(text.tokens[:i], context), self._source(request, text), False)
            for text, i in reversed(self._stores[request.store_key].log)
        ]
        chosen: list[Occurrence] = []
        above = constants.MAX_MATCH + 1
        for order, max_visits in reversed(list(zip(constants.ORDERS, visits, strict=True))):
            visited = [o for o in matches if o.match >= order][:max_visits]
            chosen += [o for o in visited if o.match < above]
            above = order
        return chosen

    def _in_other_problems(self, request: _Request, context: list[int], visits: Sequence[int]) -> list[Occurrence]:
        """The same in the texts of other problems, without order 1. The own problem's texts use up visits, too."""
        matches = [
            Occurrence(text, i, min(i - text.context, match_length(text.tokens[:i], context)), CROSS_PROBLEM, True)
            for text in reversed(self._shared)
            for i in reversed(range(text.context, len(text.tokens)))
        ]
        chosen: list[Occurrence] = []
        above = constants.MAX_MATCH + 1
        for order, max_visits in list(zip(constants.ORDERS, visits, strict=True))[:0:-1]:
            visited = [o for o in matches if o.match >= order][:max_visits]
            chosen += [o for o in visited if o.match < above and o.text.store_key != request.store_key]
            above = order
        return chosen[: constants.CROSS_PROBLEM_CANDIDATES]

    def _source(self, request: _Request, text: Text) -> int:
        if text is request.text:
            return 0
        age = 0 if text.history_tick is None else self.history_tick - text.history_tick
        return 1 + min(age, CROSS_PROBLEM - 2)


def _follow(occurrences: list[Occurrence], token: int) -> list[Occurrence]:
    """The occurrences that continue with a token, one token on."""
    return [
        Occurrence(o.text, o.index + 1, min(o.match + 1, constants.MAX_MATCH), o.source, o.cross_problem)
        for o in occurrences
        if o.token == token and o.index + 1 < len(o.text.tokens)
    ]
