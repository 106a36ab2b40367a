"""The history drafter finds the newest and longest earlier matches of the context, and drafts the tokens that followed.

It looks in three sources of the request's problem: past trajectories (responses) in the window, live siblings (other
requests of the problem, visible token by token while they decode) and the request's own text. The newest texts of other
problems are a fourth source. Each occurrence votes for its next token with a weight learned for its match length,
source and recency. A learned model turns the votes into a probability of acceptance for each token (recall.h). A draft
takes the likeliest token and continues with the occurrences that agree with it. All weights are updated from the
emitted tokens, draft after draft.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from das.drafter import checks, distributions, native
from das.drafter.distributions import Distributions
from das.drafter.drafter import Draft, Drafter, Drafts
from das.drafter.options import (
    AGREEING,
    CROSS_PROBLEM_CANDIDATES,
    DEFAULTS,
    FALLBACK_VISITS,
    MAX_MATCH,
    PLACES,
    PROMPT_CONTEXT,
    VISITS,
    DrafterOptions,
)
from das.drafter.saved import SavedHistory, SavedText, read_history
from das.drafter.texts import IndexedRequest, SharedTexts, Stores
from das.drafter.thread import Arriving, DraftThread
from das.general.arrays import token_array


class HistoryDrafter(Drafter):
    """Drafts from past trajectories of the problem, its live siblings, the request's own text and other problems.

    window          history ticks (steps or epochs) for which finished requests are kept, including the current tick;
                    0: finished requests are forgotten at once
    min_prob        a draft ends before the estimated probability that all of it is accepted falls below this
    max_candidates  occurrences in the problem considered for each drafted token, at most 256
    cross_problem_tokens  as a fallback, problems see up to this many tokens of each other's finished texts, at most
                    eight texts per problem; 0: none. The texts are copied, so they take memory for as many tokens.
    remember        what is stored of a past token: "tokens": only the token; "distributions": also the likeliest tokens
                    of the distribution from which it was sampled, if the caller passes them. Drafts then use the noise
                    of the request's seed
    warm            a saved history to start with, or None

    One thread at a time may use a drafter, beside its own in C (`draft_ahead`).

    Every method raises ValueError with a one-line message if an argument has a wrong type or value. The drafter is then
    unchanged.
    """

    def __init__(
        self,
        *,
        window: int = DEFAULTS.window,
        min_prob: float = DEFAULTS.min_prob,
        max_candidates: int = DEFAULTS.max_candidates,
        cross_problem_tokens: int = DEFAULTS.cross_problem_tokens,
        remember: str = DEFAULTS.remember,
        warm: str | Path | None = DEFAULTS.warm,
    ) -> None:
        DrafterOptions(window, min_prob, max_candidates, cross_problem_tokens, remember, warm)
        self.remembers = remember == "distributions"
        self.window = window
        self.cross_problem_tokens = cross_problem_tokens
        self.history_tick = 0
        self._lib = native.lib()
        self._config = native.Config(
            max_match=MAX_MATCH,
            max_candidates=int(max_candidates),
            fallback_visits=FALLBACK_VISITS,
            cross_problem_candidates=CROSS_PROBLEM_CANDIDATES if self.cross_problem_tokens else 0,
            places=PLACES,
            agreeing=AGREEING,
            remembers=self.remembers,
            key=native.Key.random(),
            min_prob=min_prob,
        )
        self._config.visits[:] = VISITS
        self._requests: dict[str, IndexedRequest] = {}
        self._core = self._lib.das_new(self._config)
        if not self._core:
            raise MemoryError("history drafter: out of memory")
        weakref.finalize(self, self._lib.das_free, self._core).atexit = False  # a process that ends frees everything
        self._thread = DraftThread(self._lib, self._core)
        self._restart(native.prior_weights())
        if warm is not None:
            self.load(Path(warm), restart=True)

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Raise ValueError or TypeError if the options are wrong. See Drafter."""
        known = [field.name for field in fields(DrafterOptions)]
        if unknown := set(options) - set(known):
            raise TypeError(f"drafter: no option {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        DrafterOptions(**options)

    def _restart(self, weights: np.ndarray) -> None:
        """Forget all texts and continue with these weights."""
        self._thread.join()
        native.check(self._lib.das_restart(self._core, weights.ctypes.data))
        self._stores = Stores(self._lib, self._core, self.remembers)
        self._history: dict[int, list[IndexedRequest]] = {}  # finished requests by history tick, in finishing order
        self._shared = SharedTexts(self._lib, self._core, self.cross_problem_tokens)
        self._history_tokens = 0

    # ---- requests ----

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        """Start a request of a problem. If live requests of a problem have equal prompts, the prompt is indexed once.

        seed: seed of the noise with which its tokens are sampled; None: unknown, or there is no noise.

        Raises ValueError if the request is live already, and for token ids outside 0..2**31-1.
        """
        checks.text(request, "request")
        checks.text(problem, "problem")
        if request in self._requests:
            raise ValueError(f"request {request!r} has already begun")
        self._thread.join()
        tokens = token_array(prompt)
        prompt_key = self._stores.begin_prompt(problem, tokens) if len(tokens) else None
        context = tokens[-PROMPT_CONTEXT:]
        self._requests[request] = self._stores.new_response(problem, context, prompt_key, seed=seed)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray, remembered: np.ndarray | None = None) -> None:
        """Append newly emitted tokens. The request's siblings may draft from them at once.

        remembered: the distributions from which they were sampled (das.drafter.distributions), uint32 [tokens, PAIRS].
        Raises ValueError if the request is not live, and for token ids outside 0..2**31-1.
        """
        self.observe_batch([request], [tokens], remembered)

    def observe_batch(
        self,
        requests: Sequence[str],
        tokens: Sequence[Sequence[int] | np.ndarray],
        remembered: np.ndarray | None = None,
    ) -> None:
        """Append newly emitted tokens of many requests, in order, in one native call. If it raises ValueError, nothing
        is stored.

        remembered: the distributions of all tokens, in the same order (das.drafter.distributions).
        """
        live = self._live(requests)
        if checks.size(tokens) != len(live):
            raise ValueError(f"tokens must be {len(live)} token lists, one for each request")
        if self._thread.has_taken_in(requests, tokens):
            return
        flat, offsets = checks.flat_tokens(tokens)
        handles = array("q", [r.handle for r in live])
        beside = distributions.rows(remembered, len(flat))
        addresses = [a.buffer_info()[0] for a in (handles, offsets, flat)]
        rows = None if beside is None else beside.ctypes.data
        native.check(self._lib.das_append(self._core, len(live), *addresses, rows, self.learns))
        for r, start, stop in zip(live, offsets, offsets[1:], strict=False):
            r.length += stop - start

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """Draft at most limits[i] tokens for each request, in one native call.

        floors: a draft ends before the probability that all of it is accepted falls below floors[i] or `min_prob`,
        whichever is higher. Raises ValueError for a request that is not live or named twice.
        """
        drafts = self.propose_batch(requests, limits, floors)
        return [drafts[row] for row in range(len(drafts))]

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Draft as `propose` does, and return the drafts as arrays."""
        handles = array("q", [r.handle for r in self._live(requests)])
        longest, stride = checks.limits(limits)
        if (done := self._thread.drafts(requests, longest)) is not None:
            return done
        least = None if floors is None else checks.floors(floors)
        n = len(handles)
        if len(longest) != n or (least is not None and len(least) != n):
            given = "" if least is None else f", {len(least)} floors"
            raise ValueError(f"{n} requests but {len(longest)} limits{given}")
        tokens, probs = array("i", bytes(4 * n * stride)), array("d", bytes(8 * n * stride))
        counts = array("q", bytes(8 * n))
        asked = [None if each is None else each.buffer_info()[0] for each in (handles, longest, least)]
        into = [each.buffer_info()[0] for each in (tokens, probs, counts)]
        code = self._lib.das_propose(self._core, n, *asked, stride, *into)
        if code == native.BUSY:
            twice = next(r for i, r in enumerate(requests) if r in requests[:i])
            raise ValueError(f"request {twice!r} is named twice: name each request once")
        native.check(code)
        return Drafts(
            np.frombuffer(tokens, np.int32).reshape(n, stride),
            np.frombuffer(probs, np.float64).reshape(n, stride),
            np.frombuffer(counts, np.int64),
        )

    def draft_ahead(
        self,
        requests: Sequence[tuple[str, int, int, int, Collection[int]]],
        longest: int,
        arriving: Arriving,
        floors: Sequence[float] | None = None,
    ) -> None:
        """Let the thread take in a pass's tokens once they are there, and draft at once. The next calls of
        `observe_batch` and `propose_batch` then find that done.

        requests: for each live request of the pass its name, its row in the batch, how many tokens may be drafted
        behind its text if the pass emits none, its longest draft, and its stop tokens. longest: the most of these.
        """
        texts = self._live([name for name, *_ in requests])
        self._thread.post(requests, texts, longest, arriving, floors, self.learns)

    def remembered(self, request: str) -> Distributions | None:
        """See Drafter. Raises ValueError if the request is not live."""
        return self._stores.read(self._live([request])[0])[1]

    def end(self, request: str, keep: bool = True) -> None:
        """Finish a request. Its response joins the history of the current tick, or is dropped with keep=False.

        Raises ValueError if the request is not live.
        """
        live = self._live([request])[0]
        del self._requests[request]
        self._thread.forget(request)
        if live.prompt is not None:
            self._stores.end_prompt(live.problem, live.prompt)
        if keep and self.window:
            self._remember(live, self.history_tick)
        else:
            self._stores.forget(live.problem, live.handle)

    # ---- history ----

    def move_window(self, history_tick: int) -> None:
        """Make `history_tick` (the number of a step or epoch) the current tick, and drop responses of ticks <=
        history_tick - window.

        Raises ValueError for a tick before the current one.
        """
        history_tick = checks.whole_number(history_tick, "history_tick", 0, checks.MAX_TICK)
        if history_tick < self.history_tick:
            raise ValueError(f"history_tick cannot go back from {self.history_tick} to {history_tick}")
        self._thread.join()
        self.history_tick = history_tick
        for evicted in [tick for tick in self._history if tick <= history_tick - self.window]:
            for finished in self._history.pop(evicted):
                self._history_tokens -= finished.length
                self._stores.forget(finished.problem, finished.handle)
                self._shared.drop(finished)
        native.check(self._lib.das_set_tick(self._core, history_tick))

    def save(self, path: Path) -> None:
        """Write history, history tick and learned weights as .npz, atomically. Live requests are not saved."""
        path = checks.file_path(path, "path")
        self._thread.join()
        texts = []
        for tick in sorted(self._history):
            for finished in self._history[tick]:
                tokens, remembered = self._stores.read(finished)
                texts.append(SavedText(finished.problem, tick, finished.context, tokens, remembered=remembered))
        SavedHistory(self.history_tick, texts, self.weights()).write(path)

    def load(self, path: Path, restart: bool = False) -> None:
        """Replace history, history tick and weights by saved ones. Texts outside the window are dropped.

        restart: ticks start at 0 again, for a new run that starts with an old history. Raises ValueError while requests
        are live, and for a file that holds no history or a damaged one.
        """
        if self._requests:
            raise ValueError(f"cannot load while {len(self._requests)} requests are live")
        saved = read_history(checks.file_path(path, "path"))
        if saved.weights is None:
            raise ValueError(f"{path}: it holds no weights")
        self._restart(saved.weights)
        shift = saved.history_tick if restart else 0
        self.history_tick = saved.history_tick - shift
        native.check(self._lib.das_set_tick(self._core, self.history_tick))
        for text in saved.texts:
            self._add(text, text.history_tick - shift)

    def add_history(self, texts: Sequence[SavedText]) -> None:
        """Add responses that other engines finished, each to the history of its own tick. Responses outside the window
        are dropped.

        Requests may be live. Raises ValueError for a text of a later tick than the current one.
        """
        late = [text.history_tick for text in texts if text.history_tick > self.history_tick]
        if late:
            raise ValueError(f"a text of tick {late[0]} cannot join a history at tick {self.history_tick}")
        for text in texts:
            self._add(text, text.history_tick)

    def _add(self, text: SavedText, tick: int) -> None:
        """Add a finished response to the history of a tick, if the window holds it."""
        if tick <= self.history_tick - self.window:
            return
        self._thread.join()
        context = text.tokens[: text.context]
        finished = self._stores.new_response(text.problem, context, None, drafts=False)
        finished.length = len(text.tokens) - text.context
        response = text.tokens[text.context :]
        beside = None
        if self.remembers and text.remembered is not None:
            beside = text.remembered.within(response, self.vocab).rows(response)
        self._stores.extend(finished.handle, response, indexed=True, remembered=beside)
        self._remember(finished, tick)

    def weights(self) -> np.ndarray:
        """The learned weights, float64, in the order of `das.drafter.native.SIZES`."""
        self._thread.join()
        out = np.empty_like(native.prior_weights())
        self._lib.das_weights(self._core, out.ctypes.data)
        return out

    @property
    def history_tokens(self) -> int:
        """The number of response tokens of finished requests in the window, over all problems."""
        return self._history_tokens

    # ---- parts ----

    def _live(self, requests: Sequence[str]) -> list[IndexedRequest]:
        self._thread.join()
        try:
            return [self._requests[r] for r in requests]
        except KeyError as error:
            raise ValueError(f"request {error.args[0]!r:.100} is not live") from None
        except TypeError:
            raise ValueError("requests must be a list of strings") from None

    def _remember(self, finished: IndexedRequest, history_tick: int) -> None:
        """Add a finished response to the history of a tick, and make its copy for other problems."""
        native.check(self._lib.das_end(self._core, finished.handle, 1, history_tick))
        self._history.setdefault(history_tick, []).append(finished)
        self._history_tokens += finished.length
        self._shared.add(finished, history_tick)
