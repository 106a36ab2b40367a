"""How long responses are, by problem: predictions for live requests, and the order in which requests begin."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from das.general.arrays import pack_strings, unpack_strings

V = TypeVar("V")
MAX_PROBLEMS = 2**16  # with so many, RemainingLength takes some 65 MB


class ByProblem(dict[str, V]):
    """A defaultdict by problem id: `new()` makes missing values. A full dict drops its oldest problem."""

    def __init__(self, new: Callable[[], V], max_problems: int = MAX_PROBLEMS):
        super().__init__()
        self.new = new
        self.max_problems = max_problems

    def __missing__(self, problem: str) -> V:
        if len(self) >= self.max_problems:
            del self[next(iter(self))]
        value = self[problem] = self.new()
        return value


Array = NDArray[np.float64]

MAX_RESPONSE = 2**18  # the longest response, in tokens, if no limit is known


class RemainingLength:
    """Learns the distribution of response lengths of each problem. Lengths are in tokens.

    max_tokens  the longest allowed response; longer ones are cut off there
    pooled      weight of the pool in a problem's estimate, as a number of responses
    memory      responses remembered per problem (exponential forgetting); the pool remembers 32 times as many

    Raises ValueError for fewer than 2 max_tokens.
    """

    def __init__(self, max_tokens: int, pooled: float = 4.0, memory: float = 64.0):
        if max_tokens < 2:
            raise ValueError(f"the longest response must have at least 2 tokens, got {max_tokens}")
        inner = np.unique(np.round(np.geomspace(8, max_tokens, max(2, int(np.log(max_tokens / 8) / np.log(1.1)) + 1))))
        # Many responses end at exactly `max_tokens`, so it has a bin of its own.
        self._edges = np.concatenate([[0.0], inner[inner < max_tokens - 1], [max_tokens - 1.0, float(max_tokens)]])
        self._pooled = pooled
        self._forget, self._pool_forget = 1 - 1 / memory, 1 - 1 / (32 * memory)
        bins = len(self._edges) - 1
        self._pool = np.zeros(bins)  # responses that ended in each bin
        self._problems: ByProblem[Array] = ByProblem(lambda: np.zeros(bins))
        self._survivals: dict[str, Array] = {}  # by problem; valid until the next observation

    def observe(self, problem: str, length: int) -> None:
        """Learn from a finished response of `length` tokens."""
        # The bin with lower edge < length <= upper edge.
        at = min(int(np.searchsorted(self._edges, length, side="left")) - 1, len(self._pool) - 1)
        for ended, forget in ((self._problems[problem], self._forget), (self._pool, self._pool_forget)):
            ended *= forget
            ended[max(at, 0)] += 1
        self._survivals.clear()

    def state(self) -> dict[str, np.ndarray]:
        """Returns the learned counts, as arrays for `restore`."""
        ended = np.array(list(self._problems.values())).reshape(len(self._problems), len(self._pool))
        return {"pool": self._pool, "ended_P_bins": ended, "problems": pack_strings(list(self._problems))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned. The state of a model with another `max_tokens` is ignored, because its
        bins are others: lengths are then learned anew, which changes drafts and no token."""
        if state["pool"].shape != self._pool.shape:
            return
        self._pool = state["pool"].copy()
        self._problems.clear()
        self._problems.update(zip(unpack_strings(state["problems"]), state["ended_P_bins"].copy(), strict=True))
        self._survivals.clear()

    def _survival(self, problem: str) -> Array:
        """Returns, for every edge of the bins, the probability that a response is longer; 0 at the last edge."""
        if problem not in self._problems:
            problem = ""  # all unknown problems share one estimate
        if problem not in self._survivals:
            at_risk = np.cumsum(self._pool[::-1])[::-1]
            # These constants matter only where no response was seen. They let half of the responses survive 13 more
            # bins, which is growth by a factor of 3.7.
            hazard = (self._pool + 0.05) / (at_risk + 1)
            ended = self._problems.get(problem, np.zeros(len(self._pool)))
            own_risk = np.cumsum(ended[::-1])[::-1]
            hazard = (ended + self._pooled * hazard) / (own_risk + self._pooled)
            hazard[-1] = 1.0
            self._survivals[problem] = np.concatenate([[1.0], np.cumprod(1 - hazard)])
        return self._survivals[problem]

    def mean_length(self, problem: str) -> float:
        """Returns the mean length of the problem's responses."""
        return float(np.trapezoid(self._survival(problem), self._edges))

    def mean_remaining(self, problem: str, generated_R: Array) -> Array:
        """Returns the mean number of tokens that still follow after generated_R tokens; at least 1, [requests]."""
        survival = self._survival(problem)
        steps = np.diff(self._edges) * (survival[1:] + survival[:-1]) / 2
        after = np.append(np.cumsum(steps[::-1])[::-1], 0.0)  # area beyond each edge
        alive = np.interp(generated_R, self._edges, survival)
        upper = np.minimum(np.searchsorted(self._edges, generated_R, side="right"), len(self._edges) - 1)
        in_bin = np.maximum(0.0, self._edges[upper] - generated_R) * (alive + survival[upper]) / 2
        return np.maximum(1.0, (in_bin + after[upper]) / np.maximum(alive, 1e-12))

    def quantiles(self, problem: str, shares: Array) -> Array:
        """Returns quantiles of the problem's response lengths, linear within bins. shares: in [0, 1]."""
        return np.interp(shares, 1 - self._survival(problem), self._edges)


class LongestFirst:
    """Learns each problem's response lengths over rollouts, and orders requests by them."""

    def __init__(self) -> None:
        self.lengths = RemainingLength(MAX_RESPONSE)

    def order(self, problems: Sequence[str]) -> list[int]:
        """Returns the indices of the requests in starting order, one problem after the other."""
        expected = {problem: self.lengths.mean_length(problem) for problem in problems}
        first_index = {problem: i for i, problem in reversed(list(enumerate(problems)))}
        return sorted(range(len(problems)), key=lambda i: (-expected[problems[i]], first_index[problems[i]], i))

    def observe(self, problems: Sequence[str], lengths: Sequence[int]) -> None:
        """Learn from a finished rollout. lengths: the response lengths, in tokens."""
        for problem, length in zip(problems, lengths, strict=True):
            self.lengths.observe(problem, length)
