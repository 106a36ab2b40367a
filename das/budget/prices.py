"""PassPrices: what extra tokens add to a target pass, learned from the engine's own passes."""

from ctypes import CDLL, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from das.budget.latency import read_drafting
from das.budget.policies import TargetPass
from das.native import load_native

Array = NDArray[np.float64]


@cache
def _native() -> CDLL:
    library = load_native(Path(__file__).with_name("prices.c"))
    library.das_prices_size.restype = c_int64
    library.das_prices_init.argtypes = [c_void_p, c_double]
    library.das_prices_give.argtypes = [c_void_p, *[c_double] * 4]
    library.das_prices_predict.argtypes = [c_void_p, *[c_double] * 3]
    library.das_prices_predict.restype = c_double
    library.das_prices_observe.argtypes = [c_void_p, *[c_double] * 4]
    library.das_prices_most.argtypes = [c_void_p, c_double]
    library.das_prices_most.restype = c_int64
    library.das_prices_table.argtypes = [c_void_p, c_double, c_double, c_int64, c_void_p]
    return library


class PassPrices:
    def __init__(self, ratio: float, measured: str | None = None):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._core = _native()
        self._memory = np.zeros(self._core.das_prices_size() // 8, np.int64)
        self._at = self._memory.ctypes.data
        self._core.das_prices_init(self._at, ratio)
        self.learns = measured is None
        if measured is not None:
            form = read_drafting(Path(measured))
            self._core.das_prices_give(self._at, form.base, form.row, form.drafting, form.token)

    @property
    def seen(self): return int(self._memory[2])
    @property
    def plain_seen(self): return int(self._memory[3])
    @property
    def reach(self): return int(self._memory[5])

    def observe(self, done: TargetPass) -> None:
        self._core.das_prices_observe(self._at, done.live, done.num_drafted, done.context, done.seconds)

    def table(self, live: int, context: int, most: int) -> Array:
        """Seconds of a pass of `live` requests with 0 to `most` extra tokens [most + 1]."""
        seconds = np.empty(most + 1)
        self._core.das_prices_table(self._at, live, context, most, seconds.ctypes.data)
        return seconds

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        if not self.seen:
            return float("nan")
        return float(self._core.das_prices_predict(self._at, live, num_drafted, context))

    def most(self, live: int) -> int:
        return self._core.das_prices_most(self._at, live)
