"""LatencyModel: the time of passes, learned from the passes themselves: medians by size, made monotone.

The size of a pass is its number of live requests and its number of tokens (live + drafted), both in bins. The last few
passes of each size are remembered, and a low median of their times is the time of the size. It is the third of them
that is the fastest, because interruptions and other work only ever make a pass slower. Passes with drafts are other
sizes than passes without, so the cost of drafting at all, however few tokens are drafted, is in their medians.

To predict, the sizes with the most similar number of requests are joined to a curve over tokens. It is made monotone
(pool adjacent violators), because more tokens take no less time, and is linear between sizes. Beyond the largest size
tried, a token costs what it costs over the last octave; before any was tried, what `ratio` assumes.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from math import inf, log2, nan

import numpy as np
from numpy.typing import NDArray

from das.budget.policies import TargetPass

Array = NDArray[np.float64]

MEMORY = 15  # passes remembered of each size
FORGET, OLD = 0.98, 0.02  # the curve follows recent sizes: a pass later a size's weight is FORGET of it, down to OLD
TOKEN_BINS, LIVE_BINS = 6, 2  # bins per octave
EVERY = 8  # passes until curves are made anew, unless a pass surprises
SURPRISE = 0.25  # relative error of a surprising pass
NEW_SIZE = 1.2  # a pass of a new number of tokens that took this many times its prediction may have prepared kernels
NEW_IN_A_ROW = 6  # at most so many passes in a row are explained this way
ERROR_MEMORY = 0.995  # exponential forgetting of the mean error
FEW, QUARTER, GROWTH = 4, 0.25, 1.5  # see `most`
FAR = 2.0**30  # tokens; curves end there
ON_GPU = 230.0  # LatencyModel.usual: an 8B on an H200, by experiments/simulate/gpu_times.py


def monotone(values: list[float], weights: list[float]) -> list[float]:
    """Returns the numbers that never fall and are closest to `values`, by weighted least squares."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many
    for mean, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > mean:
            other, of, number = pools.pop()
            mean = (mean * weight + other * of) / (weight + of)
            weight, count = weight + of, count + number
        pools.append((mean, weight, count))
    return [mean for mean, _, count in pools for _ in range(count)]


class _Size:
    """The last passes of one size: their low median, in seconds, and their mean number of tokens."""

    __slots__ = ("_passes", "seconds", "tokens", "weight", "when")

    def __init__(self) -> None:
        self._passes: deque[tuple[float, int]] = deque(maxlen=MEMORY)  # seconds, tokens
        self.seconds = self.tokens = 0.0
        self.weight = self.when = 0  # number of passes, number of the last one

    def add(self, seconds: float, tokens: int, when: int) -> None:
        passes = self._passes
        passes.append((seconds, tokens))
        self.weight, self.when = len(passes), when
        self.seconds = sorted(passes)[(len(passes) - 1) // 3][0]
        self.tokens = sum([count for _, count in passes]) / len(passes)


@dataclass(frozen=True, slots=True)
class _Curve:
    """Seconds by tokens, for one number of live requests. The first corner is the pass without drafts."""

    tokens: list[float]  # of each corner
    seconds: list[float]
    cheapest: float  # see LatencyModel.cheapest

    def __call__(self, tokens: float) -> float:
        at = min(max(1, bisect_left(self.tokens, tokens)), len(self.tokens) - 1)
        low, high = self.tokens[at - 1], self.tokens[at]
        return self.seconds[at - 1] + (self.seconds[at] - self.seconds[at - 1]) * (tokens - low) / (high - low)


class LatencyModel:
    """Predicts the time of a pass, from the first pass on. Times are in seconds.

    ratio   seconds of a small pass / seconds of a token, assumed until passes show the cost of tokens; None: `usual`

    Raises ValueError for a ratio that is not positive.
    """

    usual = 64.0  # ratio of this device; an engine on a GPU sets ON_GPU

    def __init__(self, ratio: float | None = None):
        if ratio is None:
            ratio = self.usual
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._ratio = ratio
        self.seen = self._reach = 0  # passes; the most tokens of a pass with drafts
        self._plain: dict[int, _Size] = {}  # passes without drafts: by the bin of their requests
        self._drafted: dict[int, dict[int, _Size]] = {}  # with drafts: by the bin of their tokens, of their requests
        self._known: set[int] = set()  # numbers of tokens of passes with drafts
        self._unlearned = 0  # passes in a row that were not learned because their number of tokens was new
        self._predictions = self._errors = 0.0  # sums with forgetting: 1, relative errors
        self._curves: dict[int, _Curve] = {}  # by live requests
        self._made_at = 0  # the pass at which curves were last dropped

    def observe(self, done: TargetPass) -> None:
        """Learn from one finished pass."""
        if done.seconds <= 0:
            return
        seconds, tokens, error = done.seconds, done.live + done.num_drafted, inf
        if self.seen:
            expected = self.predict(done.live, done.num_drafted)
            error = abs(expected / seconds - 1)
            self._predictions = ERROR_MEMORY * self._predictions + 1
            self._errors = ERROR_MEMORY * self._errors + error
            if done.num_drafted and self._prepared_kernels(tokens, seconds / expected):
                return
        self._learn(done.live, done.num_drafted, seconds, error)

    def _prepared_kernels(self, tokens: int, slowdown: float) -> bool:
        """Whether a pass was slow because the engine prepared kernels for a new number of tokens (oneDNN takes 3 ms, on
        passes of 4 ms). At most a few passes in a row are explained this way: prices may really be that high."""
        is_new = tokens not in self._known
        self._known.add(tokens)
        prepared = is_new and slowdown > NEW_SIZE and self._unlearned < NEW_IN_A_ROW
        self._unlearned = self._unlearned + 1 if prepared else 0
        return prepared

    def _size(self, live: int, drafted: int) -> _Size:
        sizes = self._plain if not drafted else self._drafted.setdefault(int(TOKEN_BINS * log2(live + drafted)), {})
        return sizes.setdefault(_live_bin(live), _Size())

    def _learn(self, live: int, drafted: int, seconds: float, error: float = inf) -> None:
        self.seen += 1
        if drafted:
            self._reach = max(self._reach, live + drafted)
        size = self._size(live, drafted)
        size.add(seconds, live + drafted, self.seen)
        if error > SURPRISE or size.weight <= 2 or self.seen - self._made_at >= EVERY:
            self._curves.clear()
            self._made_at = self.seen

    def _curve(self, live: int) -> _Curve:
        if live not in self._curves:
            self._curves[live] = self._made_curve(live)
        return self._curves[live]

    def _made_curve(self, live: int) -> _Curve:
        tokens, seconds = self._with_drafts(live)
        plain, slope = self._without_drafts(live), 0.0
        if len(tokens) > 1:
            octave = max(tokens[0], tokens[-1] / 2)
            slope = (seconds[-1] - float(np.interp(octave, tokens, seconds))) / (tokens[-1] - octave)
        if plain is None:  # all passes had drafts
            plain = max(seconds[0] - slope * (tokens[0] - live), seconds[0] / 2) if tokens else self._ratio + live
        if len(tokens) < 2:
            slope = plain / (self._ratio + live)
        corners = [float(live), *tokens]
        times = [plain, *(max(plain, each) for each in seconds)]
        beyond = 2 * corners[-1] + 2  # tokens; who asks for the lowest cost does not look further
        costs = [(took - plain) / (at - live) for at, took in zip(corners[1:], times[1:], strict=True)]
        costs.append((times[-1] + slope * (beyond - corners[-1]) - plain) / (beyond - live))
        corners.append(FAR)
        times.append(times[-1] + slope * (FAR - corners[-2]))
        return _Curve(corners, times, max(0.0, min(costs)) * live / plain)

    def _with_drafts(self, live: int) -> tuple[list[float], list[float]]:
        """Returns tokens and seconds of the sizes with drafts. Of several with equal tokens, the one with the most
        similar number of requests counts, or the latest."""
        here = _live_bin(live)
        sizes: list[_Size] = []
        weights: list[float] = []
        for _, by_live in sorted(self._drafted.items()):
            nearest = min(by_live, key=lambda row: (abs(row - here), -by_live[row].when))
            if by_live[nearest].tokens > live:
                sizes.append(by_live[nearest])
                recent = max(OLD, FORGET ** (self.seen - sizes[-1].when))
                weights.append(recent * sizes[-1].weight / (1 + (nearest - here) ** 2))
        return [size.tokens for size in sizes], monotone([size.seconds for size in sizes], weights)

    def _without_drafts(self, live: int) -> float | None:
        """Returns the seconds of a pass without drafts; None before the first one."""
        if not self._plain:
            return None
        sizes = [size for _, size in sorted(self._plain.items())]
        tokens = [size.tokens for size in sizes]
        seconds = monotone([size.seconds for size in sizes], [size.weight for size in sizes])
        nearest = min(max(live, tokens[0]), tokens[-1])
        at_nearest = float(np.interp(nearest, tokens, seconds))
        return at_nearest * (self._ratio + live) / (self._ratio + nearest)

    def table(self, live: int, most: int) -> Array:
        """Returns the predicted seconds of passes with 0 to `most` drafted tokens [most + 1]. They never fall."""
        curve = self._curve(live)
        return np.interp(np.arange(live, live + most + 1), curve.tokens, curve.seconds)

    def predict(self, live: int, num_drafted: int = 0) -> float:
        """Returns the predicted seconds of a pass; nan before the first observed pass."""
        return self._curve(live)(live + num_drafted) if self.seen else nan

    def line(self, live: int) -> tuple[float, float]:
        """Returns c_base and c_tok of the line c_base + c_tok tokens (paper Eq 1) through the pass without drafts and
        the last size with drafts, or through what `ratio` assumes. Both are above 0."""
        curve = self._curve(live)
        last, plain = max(1, len(curve.tokens) - 2), curve.seconds[0]
        token = max((curve.seconds[last] - plain) / (curve.tokens[last] - live), 1e-4 * plain)
        return max(plain - token * live, 0.01 * plain), token

    def most(self, live: int) -> int:
        """Returns the most drafted tokens to try in a pass now: slightly more than were tried before, or a quarter of
        the live requests. Fewer could not make up for what drafting costs however few tokens are drafted."""
        return int(max(FEW, QUARTER * live, GROWTH * (self._reach - live)))

    def cheapest(self, live: int) -> float:
        """Returns the average cost of a drafted token at the number of drafted tokens where it is lowest. Unit: the
        seconds of a pass without drafts, divided by `live`."""
        return self._curve(live).cheapest

    @property
    def error(self) -> float:
        """The mean absolute relative error of the predictions for the last 200 passes or so; nan without any."""
        return self._errors / self._predictions if self._predictions else nan


def _live_bin(live: int) -> int:
    return int(LIVE_BINS * log2(live))
