"""pass@k, the chance that at least one of k responses to a problem is right, with its interval.

The estimate is unbiased (Chen et al. 2021): of n responses with c right ones, 1 - C(n-c, k) / C(n, k) is the share of
all sets of k responses that hold a right one.
"""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import NormalDist

import numpy as np

RESAMPLES = 10_000  # how often problems are drawn for an interval
LEVEL = 0.95


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Estimate pass@k for one problem with `samples` responses, of which `correct` are right. k: 1 to `samples`."""
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"k={k}, {correct} correct of {samples} samples: need 1 <= k <= samples")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def mean_pass_at_k(samples: int, correct: Sequence[int], k: int) -> float:
    """Return the mean of the estimates of pass@k over problems. correct: number of right responses to each problem."""
    return float(np.mean([pass_at_k(samples, right, k) for right in correct]))


def interval(samples: int, correct: Sequence[int], k: int) -> tuple[float, float]:
    """Return the bounds of a 95 % interval of the mean pass@k: percentiles of the means over problems that are drawn
    with replacement (bootstrap).

    The draws have a fixed seed, so that the same counts give the same interval. If all problems have the same pass@k,
    all draws are equal, and other rules give the bounds. If all n problems are solved, or none is, one bound is that
    value; the other follows from the chance of n equal results in a row (0.025 ** (1 / n)). In all other cases the
    responses are taken to be right with one common chance, and the bounds are Wilson's.
    """
    values = np.array([pass_at_k(samples, right, k) for right in correct])
    outside = (1 - LEVEL) / 2
    if values.min() == values.max():
        value = float(values.mean())
        if value in (0.0, 1.0):
            chance = outside ** (1 / len(values))
            return (0.0, 1 - chance) if value == 0 else (chance, 1.0)
        low, high = (1 - (1 - chance) ** k for chance in wilson(sum(correct), samples * len(correct)))
        return min(low, value), max(high, value)  # many equal problems may lie outside Wilson's bounds
    chosen = np.random.default_rng(0).multinomial(len(values), np.full(len(values), 1 / len(values)), RESAMPLES)
    low, high = np.quantile(chosen @ values / len(values), [outside, 1 - outside])
    return float(low), float(high)


def wilson(right: int, responses: int) -> tuple[float, float]:
    """Bounds of Wilson's 95 % interval of the chance that a response is right. right: number of right responses."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = right / responses
    middle = share + z**2 / (2 * responses)
    half = z * sqrt(share * (1 - share) / responses + z**2 / (4 * responses**2))
    return (middle - half) / (1 + z**2 / responses), (middle + half) / (1 + z**2 / responses)


def powers_of_two(samples: int) -> list[int]:
    """Return the powers of two from 1 to `samples`: 1, 2, 4 ..."""
    return [1 << power for power in range(samples.bit_length())]
