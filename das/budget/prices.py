"""PassPrices learns from the engine's passes how much time extra tokens add to a target pass.

    T(live, extra, branches, context) = row live + kv context + drafting [if extra > 0] + branch branches
                                        + G(live + extra)

`extra` is the number of drafted tokens, which are the query tokens of a pass beyond one per live request. A branch of a
draft adds copies of KV blocks and reads its request's context once more. G never falls and is linear between knots, six
per octave. So it can have knees (a pass becomes compute-bound) and stairs (CUDA graphs exist for some sizes only).
Without evidence, G is the line that `ratio` assumes. This prior counts less when times are less noisy.

A bin is the interval between two knots. The last few passes of each bin are remembered. Newer passes count more, but
sizes that are not tried again are not forgotten, so a loss is not repeated. If a pass takes far longer than others of
its bin, it counts as interrupted. If the next pass is slow too, a plain pass is requested. If the plain pass (without
drafts) is slow as well, other work has taken the machine: nothing is learned until that ends or has lasted for many
passes. Otherwise drafts have become more expensive: older passes of that size or larger are forgotten. The core is in
C.
"""

from ctypes import CDLL, c_double, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from das.budget.latency import read_drafting
from das.budget.latency_forms import Array
from das.budget.policies import TargetPass
from das.native import load_native


@cache
def _native() -> CDLL:
    library = load_native(Path(__file__).with_name("prices.c"))
    for name, result, arguments in (
        ("size", c_int64, []),
        ("init", None, [c_double]),
        ("give", None, [c_double] * 4),
        ("observe", None, [c_double] * 5),
        ("predict", c_double, [c_double] * 4),
        ("table", None, [c_double, c_double, c_int64, c_void_p]),
        ("most", c_int64, [c_double]),
        ("cheapest", c_double, [c_double] * 2),
        ("error", c_double, []),
        ("slowness", c_double, []),
        ("branch", c_double, []),
        ("wants_control", c_int64, []),
    ):
        function = getattr(library, f"das_prices_{name}")
        function.restype = result
        function.argtypes = [] if name == "size" else [c_void_p, *arguments]
    return library


class PassPrices:
    """Predicts the time of a pass, from the first pass on. Times are in seconds.

    ratio     seconds of a small pass / seconds of a token, assumed until passes show the cost of tokens
    measured  a latency.json written by task=calibrate. Its form `drafting` is used unchanged, and nothing is learned

    Raises ValueError for a ratio that is not positive and for a file without latencies.
    """

    def __init__(self, ratio: float, measured: str | None = None):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        form = None if measured is None else read_drafting(Path(measured))
        self.learns = form is None
        self._core = _native()
        self._memory = np.zeros(self._core.das_prices_size(), np.uint8)
        self._at = self._memory.ctypes.data
        self._seen = 0
        self._core.das_prices_init(self._at, ratio)
        if form is not None:
            self._core.das_prices_give(self._at, form.base, form.row, form.drafting, form.token)

    def observe(self, done: TargetPass) -> None:
        """Learn the prices of tokens and drafts from one finished pass."""
        if self.learns:
            self._seen += 1
            self._core.das_prices_observe(
                self._at, done.live, done.num_drafted, done.branches, done.context, done.seconds
            )

    def table(self, live: int, context: int, most: int) -> Array:
        """Returns the predicted seconds of passes with 0 to `most` extra tokens [most + 1]. They never fall."""
        seconds = np.empty(most + 1)
        self._core.das_prices_table(self._at, live, context, most, seconds.ctypes.data)
        return seconds

    def predict(self, live: int, extra: int, context: int, branches: int = 0) -> float:
        """Returns the predicted seconds of a pass; nan before the first observed pass."""
        if self.learns and not self._seen:
            return float("nan")
        return float(self._core.das_prices_predict(self._at, live, extra, branches, context))

    def most(self, live: int) -> int:
        """Returns the most extra tokens to try in a pass now: slightly more than were tried before."""
        return int(self._core.das_prices_most(self._at, live))

    def cheapest(self, live: int, context: int) -> float:
        """Returns the average cost of an extra token at the number of extra tokens where it is lowest. Unit: the
        seconds of a pass without drafts, divided by `live`."""
        return float(self._core.das_prices_cheapest(self._at, live, context))

    @property
    def wants_control(self) -> bool:
        """True if the next pass should have no drafts, to tell whether the machine is slow or drafts are expensive."""
        return bool(self._core.das_prices_wants_control(self._at))

    @property
    def branch(self) -> float:
        """The seconds that a branch of a draft adds to a pass."""
        return float(self._core.das_prices_branch(self._at))

    @property
    def slowness(self) -> float:
        """The factor by which all passes are slower while other work takes the machine; 1 is normal."""
        return float(self._core.das_prices_slowness(self._at))

    @property
    def error(self) -> float:
        """The mean absolute relative error of the predictions for the last 200 passes or so; nan without any."""
        return float(self._core.das_prices_error(self._at))
