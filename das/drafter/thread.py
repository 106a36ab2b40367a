"""What the history drafter shares with its thread in C (thread.h), which drafts beside Python: the tokens of a pass
that come in, and the drafts behind them, also those for which a device waits."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from das.drafter import native
from das.drafter.drafter import Drafts
from das.drafter.texts import IndexedRequest


@dataclass(frozen=True)
class Late:
    """Where a device looks for drafts, by the rows of a batch.

    tokens: int64 [rows, longest draft], filled up with 0. probs: of each token, given those before it, float64. counts:
    of tokens, int64 [rows]. marks: int64; the first is the number of the pass behind which they are.
    """

    tokens: np.ndarray
    probs: np.ndarray
    counts: np.ndarray
    marks: np.ndarray

    def write(self, number: int, rows: Sequence[int] = (), drafts: Drafts | None = None) -> None:
        """Write the drafts behind a pass, of the requests in these rows, unless the thread has done so."""
        if self.marks[0] >= number:
            return
        self.tokens[:], self.probs[:], self.counts[:] = 0, 0.0, 0
        if drafts is not None:
            at, width = np.asarray(rows), min(self.tokens.shape[1], drafts.tokens.shape[1])
            self.counts[at] = np.minimum(drafts.counts, width)
            is_drafted = np.arange(width) < self.counts[at, None]
            self.tokens[at, :width] = np.where(is_drafted, drafts.tokens[:, :width], 0)
            self.probs[at, :width] = np.where(is_drafted, drafts.probs[:, :width], 0.0)
        self.marks[0] = number


@dataclass(frozen=True)
class Arriving:
    """The tokens of a pass, which may still be on their way into this process's memory.

    tokens: int64 [batch, 2 + width]: how many tokens each request of the batch emitted, how many drafted ones it
    verified, and the tokens. remembered: the distributions of its rows of logits, uint32 [rows, PAIRS], and how many
    rows less one each request has, int64 [batch]. number, arrived: the number of the pass, and the address of an int64
    that is as large once they are there; 0: they are. late: where a device waits for drafts.
    """

    tokens: np.ndarray
    remembered: tuple[np.ndarray, np.ndarray] | None = None
    number: int = 0
    arrived: int = 0
    late: Late | None = None


@dataclass
class _Job:
    """A pass for the thread, with its requests and all arrays, which must stay."""

    job: native.Job
    places: dict[str, int]  # of its requests in the arrays
    texts: Sequence[IndexedRequest]
    arrays: dict[str, np.ndarray]
    is_named: bool = False  # whether the caller knows the tokens that were taken in


class DraftThread:
    """The thread of a core. It has one job at a time: it takes in the tokens of a pass, and drafts behind them. What it
    did stays until the caller names these tokens, and asks for these drafts."""

    def __init__(self, lib: ctypes.CDLL, core: int) -> None:
        self._lib, self._core = lib, core
        self._running: _Job | None = None
        self._done: _Job | None = None

    def post(
        self,
        requests: Sequence[tuple[str, int, int, int, Collection[int]]],
        texts: Sequence[IndexedRequest],
        longest: int,
        arriving: Arriving,
        floors: Sequence[float] | None,
        learns: bool,
    ) -> None:
        """Start a job: see HistoryDrafter.draft_ahead. texts: those of the requests."""
        n, (names, rows, left, caps, stops) = len(requests), zip(*requests, strict=True)
        numbers = {"handles": [text.handle for text in texts], "rows": rows, "left": left, "caps": caps}
        arrays: dict[str, np.ndarray] = {
            **{name: np.array(values, np.int64) for name, values in numbers.items()},
            "stops": np.array([token for own in stops for token in own], np.int32),
            "stop_ends": np.cumsum([len(own) for own in stops]).astype(np.int64),
            "tokens": arriving.tokens,
            "drafts": np.zeros((n, longest), np.int32),
            "probs": np.zeros((n, longest)),
            **{name: np.zeros(n, np.int64) for name in ("kept", "counts", "limits")},
        }
        if floors is not None:
            arrays["floors"] = np.array(floors, np.float64)
        beside = {"drafted_stride": 0}
        if arriving.remembered is not None:
            arrays["pairs"], arrays["num_drafted"] = arriving.remembered
            beside["drafted_stride"] = arrays["num_drafted"].strides[0] // 8
        if (late := arriving.late) is not None:
            arrays |= {"late": late.tokens, "late_probs": late.probs, "late_counts": late.counts, "mark": late.marks}
            beside["late_width"] = late.tokens.shape[1]
        job = native.Job(
            n=n, batch=len(arriving.tokens), width=arriving.tokens.shape[1] - 2, stride=longest, learns=learns,
            number=arriving.number, arrived=arriving.arrived or None, **beside,
            **{name: values.ctypes.data for name, values in arrays.items()},
        )  # fmt: skip
        native.check(self._lib.das_post(self._core, job))
        self._running = _Job(job, {name: i for i, name in enumerate(names)}, texts, arrays)

    def join(self) -> None:
        """Wait until the thread has done its work. Whoever reads or writes texts does this first."""
        done, self._running = self._running, None
        if done is None:
            return
        self._lib.das_wait(self._core)
        native.check(done.job.code)
        self._done = done
        for text, kept in zip(done.texts, done.arrays["kept"].tolist(), strict=True):
            text.length += kept

    def has_taken_in(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> bool:
        """Returns whether the thread took in these tokens. Raises ValueError if it took in others."""
        done = self._done
        if done is None or done.is_named or done.places.keys().isdisjoint(requests):  # its requests are over
            self._done = None
            return False
        kept = done.arrays["kept"]
        for request, own in zip(requests, tokens, strict=True):
            if request not in done.places or kept[done.places[request]] != len(own):
                raise ValueError(f"request {request!r} emitted {len(own)} tokens, and the drafter's thread saw others")
        done.is_named = True
        return True

    def drafts(self, requests: Sequence[str], limits: Sequence[int]) -> Drafts | None:
        """Returns what the thread drafted behind the tokens that were named last, for these requests; None if it did
        not."""
        done = self._done
        if done is None or not done.is_named:
            return None
        self._done = None
        if len(limits) != len(requests) or not done.places.keys() >= set(requests):
            return None
        at, made = [done.places[request] for request in requests], done.arrays
        return Drafts(made["drafts"][at], made["probs"][at], np.minimum(made["counts"][at], np.asarray(limits)))

    def forget(self, request: str) -> None:
        """Forget what the thread did for a request that is over."""
        if self._done is not None:
            self._done.places.pop(request, None)
