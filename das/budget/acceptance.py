"""AcceptanceModel: how many of a request's drafted tokens will be accepted, learned from finished requests.

A(p) = k l (1 - exp(-alpha p / l))      l: length of the response, p: tokens drafted over its life         (paper Eq 3)

k is the largest share of a response that drafts can supply. alpha is the efficiency of drafting: the first drafted
tokens are accepted at a rate of k alpha. The paper gives no estimator, so this module fits the accepted share A / l by
least squares and weights each response by its length. For a given alpha, k has a closed form; alpha is searched on a
grid. The grid needs only two sums per point, so a problem takes 1 kB however long the run is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from das.budget.lengths import ByProblem

Array = NDArray[np.float64]

ALPHAS = np.geomspace(0.01, 20.0, 96)  # 8 % apart
MAX_K = np.minimum(1.0, 1.0 / ALPHAS)  # k alpha <= 1, because a drafted token is accepted at most once


@dataclass(frozen=True)
class Curve:
    """An acceptance curve A(p) = k l (1 - exp(-alpha p / l)), with k in (0, 1], alpha > 0 and k alpha <= 1."""

    k: float
    alpha: float


@dataclass
class _Sums:
    """The sums from which k is fitted in y = k g, for every alpha of the grid: y = A / l, g = 1 - exp(-alpha p / l). A
    response of length l with A accepted and p drafted tokens has the weight l."""

    responses: float = 0.0
    yg: Array = field(default_factory=lambda: np.zeros(len(ALPHAS)))
    gg: Array = field(default_factory=lambda: np.zeros(len(ALPHAS)))

    def add(self, length: float, num_drafted: float, num_accepted: float, forget: float) -> None:
        g = -np.expm1(-ALPHAS * num_drafted / length)
        self.responses = self.responses * forget + 1
        self.yg = self.yg * forget + num_accepted * g
        self.gg = self.gg * forget + length * g * g


class AcceptanceModel:
    """One acceptance curve per problem. A problem with few responses follows the pool of all problems.

    assumed      the curve until anything has been drafted
    pooled       weight of the pool in a problem's curve, as a number of responses
    own_memory   responses remembered per problem (exponential forgetting, because policies drift)
    pool_memory  the same for the pool
    """

    def __init__(self, assumed: Curve, pooled: float = 2.0, own_memory: float = 32.0, pool_memory: float = 1000.0):
        self.assumed = assumed
        self._pooled = pooled
        self._own_forget, self._pool_forget = 1 - 1 / own_memory, 1 - 1 / pool_memory
        self._pool = _Sums()
        self._problems: ByProblem[_Sums] = ByProblem(_Sums)

    def observe(self, problem: str, length: int, num_drafted: int, num_accepted: int) -> None:
        """Learn from a finished response. A response without drafts is ignored."""
        if num_drafted and length:
            self._problems[problem].add(length, num_drafted, num_accepted, self._own_forget)
            self._pool.add(length, num_drafted, num_accepted, self._pool_forget)

    def curve(self, problem: str) -> Curve:
        """Returns the best estimate of the problem's curve."""
        pool = self._pool
        if not pool.responses:
            return self.assumed
        share = self._pooled / pool.responses if problem in self._problems else 1.0
        sums = self._problems.get(problem, _Sums())
        yg, gg = sums.yg + share * pool.yg, sums.gg + share * pool.gg
        k = np.clip(yg / gg, 1e-3, MAX_K)
        best = int(np.argmin(k * (k * gg - 2 * yg)))  # squared error, without the part that is the same for all curves
        return Curve(float(k[best]), float(ALPHAS[best]))


class TokenCalibration:
    """Compares the probabilities that a drafter states with the share of such tokens that was accepted, in bins.

    Only tokens up to the first rejected one count, because later tokens were not verified.
    """

    BINS = 20

    def __init__(self) -> None:
        # For each bin: tokens verified, the sum of their predicted probabilities, tokens accepted.
        self.counts = np.zeros((3, self.BINS))

    def observe(self, probs: Sequence[float], num_accepted: int) -> None:
        """Learn from one draft. probs[j]: P(token j is accepted | all tokens before it were accepted)."""
        verified = np.asarray(probs[: num_accepted + 1], dtype=np.float64)
        accepted = np.arange(len(verified)) < num_accepted
        bins = np.minimum((verified * self.BINS).astype(int), self.BINS - 1)
        self.counts += [np.bincount(bins, weights, self.BINS) for weights in (None, verified, accepted)]

    @property
    def error(self) -> float:
        """The expected calibration error over the verified tokens: 0 for a calibrated drafter.

        Each bin of probabilities counts |sum of probabilities - accepted tokens|, divided by all verified tokens.
        """
        verified, predicted, accepted = self.counts
        return float(np.abs(predicted - accepted).sum() / max(1.0, verified.sum()))
