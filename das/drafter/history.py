"""The history drafter: drafts what followed the newest and longest earlier occurrences of the current context.

Occurrences are looked up in three sources of a problem, the window of its past trajectories, its live siblings (shared
token by token while they decode) and the request's own text, and in the newest texts of other problems. Each votes for
its next token with a weight learned for its match length, source and recency; a learned mixture turns the votes into a
probability of acceptance per token (mix.h). The likeliest token is drafted, and the walk goes on with the occurrences
that agree. All weights follow the tokens that really come, draft after draft.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from das.drafter import native
from das.drafter.constants import CROSS_PROBLEM_CANDIDATES, FALLBACK_VISITS, MAX_MATCH, PROMPT_CONTEXT, VISITS
from das.drafter.draft import Draft, Drafts
from das.drafter.options import DEFAULTS, SCOPES, DrafterOptions
from das.drafter.texts import Request, SharedTexts, Store
from das.trajectory import MAX_TOKEN, load_arrays, pack_strings, save_arrays, token_array, unpack_strings

__all__ = ["SCOPES", "Draft", "Drafts", "HistoryDrafter"]

P = ParamSpec("P")
R = TypeVar("R")

_KIND = "drafter history 2"


def _locked(method: Callable[Concatenate[HistoryDrafter, P], R]) -> Callable[Concatenate[HistoryDrafter, P], R]:
    """Let one thread at a time change the drafter."""

    @wraps(method)
    def wrapper(self: HistoryDrafter, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **kwargs)

    return wrapper


class HistoryDrafter:
    """Drafts from past trajectories of the problem, its live siblings, the request's own text and other problems.

    window          clock ticks (steps or epochs) of history, the current one included; 0: finished requests are
                    forgotten at once
    scope           "problem+request": history, live siblings, own text with its prompt; "problem": without own text;
                    "global+request": as the first, with all problems as one; "siblings": live siblings and own text, no
                    history; "own": own text only
    min_prob        a draft ends before the estimated probability that all of it is accepted falls below this
    max_candidates  occurrences in the problem looked at per drafted token, at most 256
    cross_problem_tokens  tokens of finished texts, at most eight a problem, that problems see of each other as a
                    fallback (copies: they cost up to this many tokens' memory); 0: none. Scopes "problem+request"
                    and "problem" only
    warm            a saved history to start with, or None

    Thread-safe: threads draft side by side, for different requests; other calls take turns and wait for drafts. Native
    calls release the GIL. Bad options: ValueError.
    """

    def __init__(
        self,
        *,
        window: int = DEFAULTS.window,
        scope: str = DEFAULTS.scope,
        min_prob: float = DEFAULTS.min_prob,
        max_candidates: int = DEFAULTS.max_candidates,
        cross_problem_tokens: int = DEFAULTS.cross_problem_tokens,
        warm: str | Path | None = DEFAULTS.warm,
    ) -> None:
        options = DrafterOptions(window, scope, min_prob, max_candidates, cross_problem_tokens, warm)
        self.window = options.history_window
        self.scope = scope
        self.cross_problem_tokens = options.shared_tokens
        self.clock = 0
        self._lock = threading.RLock()
        self._lib = native.lib()
        self._config = native.Config(
            max_match=MAX_MATCH,
            max_candidates=max_candidates,
            few=FALLBACK_VISITS,
            exclude_own=scope == "problem",
            others=CROSS_PROBLEM_CANDIDATES if self.cross_problem_tokens else 0,
            min_prob=min_prob,
        )
        self._config.visits[:] = VISITS
        self._requests: dict[str, Request] = {}
        self._core = self._lib.das_new(self._config)
        if not self._core:
            raise MemoryError("history drafter: out of memory")
        weakref.finalize(self, self._lib.das_free, self._core)
        self._restart(native.prior_weights())
        if warm is not None:
            self.load(Path(warm), restart=True)

    def _restart(self, weights: np.ndarray) -> None:
        """Empty the core."""
        native.check(self._lib.das_restart(self._core, weights.ctypes.data))
        self._stores: dict[str, Store] = {}
        self._history: dict[int, list[Request]] = {}  # by clock, in the order they ended
        self._shared = SharedTexts(self._lib, self._core, self.cross_problem_tokens)
        self._history_tokens = self._live_tokens = 0

    # ---- requests ----

    @_locked
    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray) -> None:
        """Start a request of a problem. Equal prompts of a problem's live requests are indexed once."""
        if request in self._requests:
            raise ValueError(f"request {request!r} has already begun")
        tokens = token_array(prompt)
        key = self._key(request, problem)
        store = self._store(key)
        prompt_key = None
        if self.scope != "problem" and len(tokens):
            prompt_key = tokens.tobytes()
            if prompt_key not in store.prompts:
                store.prompts[prompt_key] = [self._sequence(store, tokens), 0]
            store.prompts[prompt_key][1] += 1
        self._requests[request] = self._response(problem, key, tokens[-PROMPT_CONTEXT:], prompt_key)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Append newly emitted tokens; the request's siblings may draft from them at once."""
        with self._lock:
            live = self._requests.get(request)
            if live is None:
                raise _not_live(request)
            flat = array("i")
            _add(tokens, flat)
            count = len(flat)
            native.check(self._lib.das_extend(self._core, live.handle, flat.buffer_info()[0], count, 1))
            live.length += count
            self._live_tokens += count

    @_locked
    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        """`observe` for many requests, in order, in one native call. A bad token id: ValueError, nothing stored."""
        if len(requests) != len(tokens):
            raise ValueError(f"{len(requests)} requests but {len(tokens)} token lists")
        live = self._find(requests)
        flat, offsets = array("i"), array("q", [0])
        for new in tokens:
            _add(new, flat)
            offsets.append(len(flat))
        handles = array("i", [r.handle for r in live])
        addresses = [a.buffer_info()[0] for a in (handles, offsets, flat)]
        native.check(self._lib.das_append(self._core, len(live), *addresses))
        for r, start, stop in zip(live, offsets, offsets[1:], strict=False):
            r.length += stop - start
        self._live_tokens += len(flat)

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """A draft of at most limits[i] tokens for each request, in one native call.

        floors: a draft ends before the probability that all of it is accepted falls below floors[i], or `min_prob`.
        """
        tokens, probs, counts = self._draft(requests, limits, floors, packed=True)
        ends = list(accumulate(counts, initial=0))
        flat, likely = tokens[: ends[-1]].tolist(), probs[: ends[-1]].tolist()
        return [Draft(flat[at:end], likely[at:end]) for at, end in pairwise(ends)]

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As `propose`, as arrays."""
        tokens, probs, counts = self._draft(requests, limits, floors, packed=False)
        shape = len(requests), max(limits, default=0)
        return Drafts(
            np.frombuffer(tokens, np.int32).reshape(shape),
            np.frombuffer(probs, np.float64).reshape(shape),
            np.frombuffer(counts, np.int64),
        )

    def _draft(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None, packed: bool
    ) -> tuple[array[int], array[float], array[int]]:
        """Tokens and their probabilities, in rows of the longest limit or packed row behind row; tokens a row."""
        n, stride = len(requests), max(limits, default=0)
        if len(limits) != n or (floors is not None and len(floors) != n):
            raise ValueError(
                f"{n} requests but {len(limits)} limits" + ("" if floors is None else f", {len(floors)} floors")
            )
        if min(limits, default=0) < 0:
            raise ValueError(f"limits must be >= 0, got {min(limits)}")
        handles, caps = array("i", [r.handle for r in self._find(requests)]), array("q", limits)
        ends = None if floors is None else array("d", floors)
        tokens, probs, counts = array("i", bytes(4 * n * stride)), array("d", bytes(8 * n * stride)), array("q", caps)
        native.check(
            self._lib.das_propose(
                self._core,
                n,
                handles.buffer_info()[0],
                caps.buffer_info()[0],
                None if ends is None else ends.buffer_info()[0],
                stride,
                packed,
                tokens.buffer_info()[0],
                probs.buffer_info()[0],
                counts.buffer_info()[0],
            )
        )
        return tokens, probs, counts

    @_locked
    def end(self, request: str, keep: bool = True) -> None:
        """Finish a request: its response joins the history of the current clock, or is dropped (keep=False)."""
        (live,) = self._find([request])
        del self._requests[request]
        self._live_tokens -= live.length
        store = self._stores[live.key]
        if live.prompt is not None:
            entry = store.prompts[live.prompt]
            entry[1] -= 1
            if not entry[1]:
                del store.prompts[live.prompt]
                self._forget(live.key, entry[0])
        if keep and self.window:
            native.check(self._lib.das_end(self._core, live.handle, 1, self.clock))
            self._history.setdefault(self.clock, []).append(live)
            self._history_tokens += live.length
            self._shared.add(live, self.clock)
        else:
            self._forget(live.key, live.handle)

    # ---- history ----

    @_locked
    def end_step(self, clock: int) -> None:
        """Move the clock to a step or epoch number and evict history of clocks <= clock - window."""
        if clock < self.clock:
            raise ValueError(f"the clock cannot go back from {self.clock} to {clock}")
        self.clock = clock
        for old in [c for c in self._history if c <= clock - self.window]:
            for past in self._history.pop(old):
                self._history_tokens -= past.length
                self._forget(past.key, past.handle)
                self._shared.drop(past)
        native.check(self._lib.das_clock(self._core, clock))

    @_locked
    def save(self, path: Path) -> None:
        """Write history, clock and learned weights as .npz, atomically. Live requests are not saved."""
        past = [(clock, r) for clock in sorted(self._history) for r in self._history[clock]]
        tokens = [np.empty(r.context + r.length, np.int32) for _, r in past]
        for out, (_, r) in zip(tokens, past, strict=False):
            self._lib.das_read(self._core, r.handle, out.ctypes.data)
        save_arrays(
            path,
            {
                "kind": np.array(_KIND),
                "weights": self.weights(),
                "clock": np.array(self.clock, np.int64),
                "tokens": np.concatenate(tokens) if tokens else np.empty(0, np.int32),
                "lengths": np.array([r.length for _, r in past], np.int64),
                "contexts": np.array([r.context for _, r in past], np.int64),
                "clocks": np.array([clock for clock, _ in past], np.int64),
                "problems": pack_strings([r.problem for _, r in past]),
            },
        )

    @_locked
    def load(self, path: Path, restart: bool = False) -> None:
        """Replace history, clock and weights by saved ones, as far as the window reaches. ValueError while requests
        live. restart: the clock starts at 0 again, for a new run with an old history."""
        if self._requests:
            raise ValueError(f"cannot load while {len(self._requests)} requests are live")
        a = load_arrays(path, _KIND)
        if a["weights"].shape != native.prior_weights().shape:
            raise ValueError(f"{path}: weights of another version of the drafter")
        texts = token_array(a["tokens"])
        if min(a["contexts"].min(initial=0), a["lengths"].min(initial=0)) < 0 or len(texts) != sum(
            int(a[name].sum()) for name in ("contexts", "lengths")
        ):
            raise ValueError(f"{path}: its lengths do not add up to its {len(texts)} tokens")
        self._restart(np.ascontiguousarray(a["weights"], np.float64))
        shift = int(a["clock"]) if restart else 0
        self.clock = int(a["clock"]) - shift
        native.check(self._lib.das_clock(self._core, self.clock))
        start = 0
        numbers = (a[name].tolist() for name in ("clocks", "contexts", "lengths"))
        for problem, clock, context, length in zip(unpack_strings(a["problems"]), *numbers, strict=True):
            stop, clock = start + context + length, clock - shift
            if clock > self.clock - self.window:
                head = texts[start : start + context]
                past = self._response(problem, self._key("", problem), head, None, live=False)
                past.length = length
                self._extend(past.handle, texts[start + context : stop], indexed=True)
                native.check(self._lib.das_end(self._core, past.handle, 1, clock))
                self._history.setdefault(clock, []).append(past)
                self._history_tokens += length
                self._shared.add(past, clock)
            start = stop

    @_locked
    def weights(self) -> np.ndarray:
        """The learned weights, float64, in the order of `das.drafter.prior.SIZES`."""
        out = np.empty_like(native.prior_weights())
        self._lib.das_weights(self._core, out.ctypes.data)
        return out

    @property
    def history_tokens(self) -> int:
        """Response tokens of finished requests in the window, all problems."""
        return self._history_tokens

    @property
    def live_tokens(self) -> int:
        """Response tokens of live requests."""
        return self._live_tokens

    @property
    def index_bytes(self) -> int:
        """Bytes the native core holds."""
        return self._lib.das_bytes(self._core)

    # ---- native handles ----

    def _find(self, requests: Sequence[str]) -> list[Request]:
        try:
            return [self._requests[r] for r in requests]
        except KeyError as error:
            raise _not_live(error.args[0]) from None

    def _store(self, key: str) -> Store:
        if key not in self._stores:
            self._stores[key] = Store(native.check(self._lib.das_store_new(self._core)), 0, {})
        return self._stores[key]

    def _key(self, request: str, problem: str) -> str:
        """Sequences of different stores never meet: a store per request is what "own text only" means."""
        if self.scope == "own":
            return f"request {request}"
        return "all" if self.scope == "global+request" else f"problem {problem}"

    def _sequence(self, store: Store, tokens: np.ndarray) -> int:
        """An indexed text that is no response: a prompt."""
        handle = native.check(self._lib.das_seq_new(self._core, store.handle, False))
        store.sequences += 1
        self._extend(handle, tokens, indexed=True)
        return handle

    def _response(
        self, problem: str, key: str, context: np.ndarray, prompt: bytes | None, live: bool = True
    ) -> Request:
        """An empty response after its context, which is not indexed."""
        store = self._store(key)
        handle = native.check(self._lib.das_seq_new(self._core, store.handle, live))
        store.sequences += 1
        self._extend(handle, context, indexed=False)
        return Request(problem, key, handle, len(context), prompt)

    def _extend(self, handle: int, tokens: np.ndarray, indexed: bool) -> None:
        native.check(self._lib.das_extend(self._core, handle, tokens.ctypes.data, len(tokens), int(indexed)))

    def _forget(self, key: str, handle: int) -> None:
        store = self._stores[key]
        native.check(self._lib.das_end(self._core, handle, 0, 0))
        store.sequences -= 1
        if not store.sequences:
            native.check(self._lib.das_store_end(self._core, store.handle))
            del self._stores[key]


def _add(new: Sequence[int] | np.ndarray, flat: array[int]) -> None:
    """Append tokens, checked, to an int32 array."""
    if isinstance(new, np.ndarray):
        # NumPy's checks cost microseconds: a few tokens are cheaper as a list, which `extend` checks.
        few = new.size < 64 and new.ndim == 1 and new.dtype.kind in "iu"
        new = new.tolist() if few else token_array(new)
    try:
        if isinstance(new, np.ndarray):
            flat.frombytes(new.tobytes())
        else:
            flat.extend(new)
    except OverflowError:
        raise ValueError(f"token ids must be in 0..{MAX_TOKEN}") from None


def _not_live(request: str) -> ValueError:
    return ValueError(f"request {request!r} is not live")
