"""The history drafter: drafts what followed, most often, the longest earlier occurrence of the current context.

Each problem has one index over three sources: the window of its past trajectories, its live siblings (shared token by
token while they decode) and the request's own text. A lookup gathers the occurrences of the context's last tokens,
longest matches first and newest first among equals. Their next tokens are counted at a ladder of match lengths and
blended from short to long, p <- (count + a p) / (total + a), where a grows with the variety of next tokens: where long
matches are few or disagree, the shorter ones decide. The likeliest token is drafted, and the walk goes on with the
occurrences that agree.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from das.drafter import native
from das.trajectory import MAX_TOKEN, load_arrays, pack_strings, save_arrays, token_array, unpack_strings

SCOPES = ("problem+request", "problem", "siblings", "own")

# Constants chosen on parts of three recorded traces (DeepScaleR, one hard maths problem, Llama-3B RL; groups of 8 in
# lock step, at most 16 tokens a draft, min_prob 0.1) by tokens per pass, tokens drafted per pass and calibration.
# n-gram sizes indexed. Order 1, with level 1, pays: 2.41 tokens per pass at 4.7 drafted without, 2.53 at 5.6 with it
# (measured under an earlier blending rule).
ORDERS = (1, 2, 4, 8)
ENOUGH = 12  # occurrences that make a lookup of shorter n-grams unnecessary; 8 to 32 differ by < 0.01 tokens per pass
MAX_MATCH = 32  # tokens; matches are compared up to here
LEVELS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # match lengths at which next tokens are counted
# The shorter matches' estimate is worth this many occurrences per distinct next token (Witten and Bell's escape
# count, tripled to make up for choosing the likeliest). 2 drafts more and overrates it, 4 is better calibrated still.
VARIETY = 3.0
# Weight of an occurrence by the age of its sequence in clock ticks; 0: live, or finished in this tick.
AGE_WEIGHTS = (64, *(round(48 * 0.95**age) for age in range(16)))


@dataclass(frozen=True)
class Draft:
    """Drafted tokens; probs[j] estimates P(token j is accepted | the tokens before it were)."""

    tokens: list[int]
    probs: list[float]


@dataclass
class _Store:
    """A problem's index: its handle, how many sequences it holds, and its live prompts (handle, live requests)."""

    handle: int
    sequences: int
    prompts: dict[bytes, list[int]]


@dataclass
class _Request:
    """A live request: problem, its sequence's handle, context tokens before its response, its prompt's key."""

    problem: str
    handle: int
    context: int
    prompt: bytes | None
    length: int = 0


def check_options(window: int, scope: str, min_prob: float, max_candidates: int) -> None:
    """ValueError, in one line, for an option outside its range."""
    if window < 0:
        raise ValueError(f"window must be >= 0, got {window}")
    if scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(SCOPES)}; got {scope!r}")
    if not 0.0 <= min_prob <= 1.0:
        raise ValueError(f"min_prob must be in 0..1, got {min_prob}")
    if not 1 <= max_candidates <= 65536:
        raise ValueError(f"max_candidates must be in 1..65536, got {max_candidates}")


class HistoryDrafter:
    """Drafts from past trajectories of the problem, its live siblings and the request's own text.

    window          clock ticks (steps or epochs) of history, the current one included; 0: finished requests are
                    forgotten at once
    scope           "problem+request": history, live siblings, own text with its prompt; "problem": without own text;
                    "siblings": live siblings and own text, no history; "own": own text only
    min_prob        a draft ends before the estimated probability that all of it is accepted falls below this
    max_candidates  earlier occurrences looked at per drafted token

    Not thread-safe; the native calls release the GIL. Bad options: ValueError.
    """

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
        self.clock = 0
        self._lib = native.lib()
        self._config = _config(scope, min_prob, max_candidates)
        self._stores: dict[str, _Store] = {}
        self._requests: dict[str, _Request] = {}
        self._history: dict[int, list[_Request]] = {}  # by clock, in the order they ended
        self._history_tokens = self._live_tokens = 0
        self._out = _Buffers(1024)
        self._open()

    def _open(self) -> None:
        self._core = self._lib.das_new(self._config)
        if not self._core:
            raise MemoryError("history drafter: out of memory")
        self._close = weakref.finalize(self, self._lib.das_free, self._core)

    # ---- requests ----

    def begin(self, request: str, problem: str, prompt: Sequence[int]) -> None:
        """Start a request of a problem. Equal prompts of a problem's live requests are indexed once."""
        if request in self._requests:
            raise ValueError(f"request {request!r} has already begun")
        tokens = token_array(prompt)
        # Sequences of different stores never meet: a store per request is what "own text only" means.
        key = f"request {request}" if self.scope == "own" else f"problem {problem}"
        store = self._store(key)
        prompt_key = None
        if self.scope != "problem" and len(tokens):
            prompt_key = tokens.tobytes()
            if prompt_key not in store.prompts:
                store.prompts[prompt_key] = [self._sequence(store, tokens, indexed=True), 0]
            store.prompts[prompt_key][1] += 1
        context = tokens[-MAX_MATCH:]
        handle = self._sequence(store, context, indexed=False)
        self._requests[request] = _Request(key, handle, len(context), prompt_key)

    def observe(self, request: str, tokens: Sequence[int]) -> None:
        """Append newly emitted tokens; the request's siblings may draft from them at once."""
        self.observe_batch([request], [tokens])

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """`observe` for many requests, in order, in one native call. A bad token id: ValueError, nothing stored."""
        if len(requests) != len(tokens):
            raise ValueError(f"{len(requests)} requests but {len(tokens)} token lists")
        live = self._find(requests)
        flat, offsets = array("i"), array("q", [0])
        for new in tokens:
            if isinstance(new, np.ndarray):
                flat.frombytes(token_array(new).tobytes())
            else:
                try:
                    flat.extend(new)
                except OverflowError:
                    raise ValueError(f"token ids must be in 0..{MAX_TOKEN}") from None
            offsets.append(len(flat))
        self._append(array("i", [r.handle for r in live]), offsets, flat, indexed=True)
        for r, start, stop in zip(live, offsets, offsets[1:], strict=False):
            r.length += stop - start
        self._live_tokens += len(flat)

    def propose(self, requests: Sequence[str], limits: Sequence[int]) -> list[Draft]:
        """A draft of at most limits[i] tokens for each request, in one native call."""
        if len(requests) != len(limits):
            raise ValueError(f"{len(requests)} requests but {len(limits)} limits")
        if any(limit < 0 for limit in limits):
            raise ValueError(f"limits must be >= 0, got {min(limits)}")
        n, stride = len(requests), max(limits, default=0)
        if n * max(stride, 1) > self._out.size:
            self._out = _Buffers(2 * n * max(stride, 1))
        out = self._out
        handles, caps = array("i", [r.handle for r in self._find(requests)]), array("q", limits)
        native.check(
            self._lib.das_propose(
                self._core, n, handles.buffer_info()[0], caps.buffer_info()[0], stride, *out.addresses
            )
        )
        spans = [(i * stride, i * stride + count) for i, count in enumerate(out.counts[:n].tolist())]
        return [Draft(out.tokens[start:stop].tolist(), out.probs[start:stop].tolist()) for start, stop in spans]

    def end(self, request: str, keep: bool = True) -> None:
        """Finish a request: its response joins the history of the current clock, or is dropped (keep=False)."""
        (live,) = self._find([request])
        del self._requests[request]
        self._live_tokens -= live.length
        store = self._stores[live.problem]
        if live.prompt is not None:
            entry = store.prompts[live.prompt]
            entry[1] -= 1
            if not entry[1]:
                del store.prompts[live.prompt]
                self._forget(live.problem, entry[0])
        if keep and self.window:
            native.check(self._lib.das_end(self._core, live.handle, 1, self.clock))
            self._history.setdefault(self.clock, []).append(live)
            self._history_tokens += live.length
        else:
            self._forget(live.problem, live.handle)

    # ---- history ----

    def end_step(self, clock: int) -> None:
        """Move the clock to a step or epoch number and evict history of clocks <= clock - window."""
        if clock < self.clock:
            raise ValueError(f"the clock cannot go back from {self.clock} to {clock}")
        self.clock = clock
        self._lib.das_clock(self._core, clock)
        for old in [c for c in self._history if c <= clock - self.window]:
            for past in self._history.pop(old):
                self._history_tokens -= past.length
                self._forget(past.problem, past.handle)

    def save(self, path: Path) -> None:
        """Write the history and the clock as .npz, atomically. Live requests are not saved."""
        past = [(clock, r) for clock in sorted(self._history) for r in self._history[clock]]
        tokens = [np.empty(r.context + r.length, np.int32) for _, r in past]
        for out, (_, r) in zip(tokens, past, strict=False):
            self._lib.das_read(self._core, r.handle, 0, out.ctypes.data)
        save_arrays(
            path,
            {
                "kind": np.array("drafter history"),
                "clock": np.array(self.clock, np.int64),
                "tokens": np.concatenate(tokens) if tokens else np.empty(0, np.int32),
                "lengths": np.array([r.length for _, r in past], np.int64),
                "contexts": np.array([r.context for _, r in past], np.int64),
                "clocks": np.array([clock for clock, _ in past], np.int64),
                "problems": pack_strings([r.problem.removeprefix("problem ") for _, r in past]),
            },
        )

    def load(self, path: Path) -> None:
        """Replace history and clock by saved ones, as far as the window reaches. ValueError while requests live."""
        if self._requests:
            raise ValueError(f"cannot load while {len(self._requests)} requests are live")
        a = load_arrays(path, "drafter history")
        self._close()
        self._open()
        self._stores, self._history, self._history_tokens = {}, {}, 0
        self.clock = int(a["clock"])
        self._lib.das_clock(self._core, self.clock)
        start = 0
        numbers = (a[name].tolist() for name in ("clocks", "contexts", "lengths"))
        for problem, clock, context, length in zip(unpack_strings(a["problems"]), *numbers, strict=True):
            stop = start + context + length
            if clock > self.clock - self.window:
                key = f"problem {problem}"
                store = self._store(key)
                handle = self._sequence(store, a["tokens"][start : start + context], indexed=False)
                self._extend(handle, a["tokens"][start + context : stop], indexed=True)
                native.check(self._lib.das_end(self._core, handle, 1, clock))
                self._history.setdefault(clock, []).append(_Request(key, handle, context, None, length))
                self._history_tokens += length
            start = stop

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

    def _find(self, requests: Sequence[str]) -> list[_Request]:
        try:
            return [self._requests[r] for r in requests]
        except KeyError as error:
            raise ValueError(f"request {error.args[0]!r} is not live") from None

    def _store(self, key: str) -> _Store:
        if key not in self._stores:
            self._stores[key] = _Store(native.check(self._lib.das_store_new(self._core)), 0, {})
        return self._stores[key]

    def _sequence(self, store: _Store, tokens: np.ndarray, indexed: bool) -> int:
        handle = native.check(self._lib.das_seq_new(self._core, store.handle))
        store.sequences += 1
        self._extend(handle, tokens, indexed)
        return handle

    def _extend(self, handle: int, tokens: np.ndarray, indexed: bool) -> None:
        self._append(array("i", [handle]), array("q", [0, len(tokens)]), array("i", tokens.tobytes()), indexed)

    def _append(self, handles: array, offsets: array, flat: array, indexed: bool) -> None:
        native.check(
            self._lib.das_append(
                self._core,
                len(handles),
                handles.buffer_info()[0],
                offsets.buffer_info()[0],
                flat.buffer_info()[0],
                int(indexed),
            )
        )

    def _forget(self, key: str, handle: int) -> None:
        store = self._stores[key]
        native.check(self._lib.das_end(self._core, handle, 0, 0))
        store.sequences -= 1
        if not store.sequences:
            native.check(self._lib.das_store_end(self._core, store.handle))
            del self._stores[key]


class _Buffers:
    """Output arrays of propose, and their addresses, which cost a microsecond each to ask for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tokens, self.probs = np.empty(size, np.int32), np.empty(size, np.float64)
        self.counts = np.empty(size, np.int64)
        self.addresses = tuple(a.ctypes.data for a in (self.tokens, self.probs, self.counts))


def _config(scope: str, min_prob: float, max_candidates: int) -> native.Config:
    """The constants of this module and a drafter's options, as the native core takes them."""
    config = native.Config(
        n_orders=len(ORDERS),
        n_levels=len(LEVELS),
        n_ages=len(AGE_WEIGHTS),
        max_match=MAX_MATCH,
        max_candidates=max_candidates,
        enough=min(ENOUGH, max_candidates),
        exclude_own=scope == "problem",
        min_prob=min_prob,
        variety=VARIETY,
    )
    config.orders[: len(ORDERS)] = ORDERS
    config.levels[: len(LEVELS)] = LEVELS
    config.weights[: len(AGE_WEIGHTS)] = AGE_WEIGHTS
    return config
