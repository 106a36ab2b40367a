"""pass@k: the chance that at least one of k responses to a problem is right, and how sure that number is.

The estimate is unbiased (Chen et al. 2021): of n responses with c right ones, 1 - C(n-c, k) / C(n, k) is the share of
all sets of k responses that hold a right one.
"""

from collections.abc import Sequence
from math import comb

import numpy as np

RESAMPLES = 10_000  # of the problems, for an interval
LEVEL = 0.95


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """The estimate for one problem with `samples` responses, of which `correct` are right. k: 1 to `samples`."""
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(f"k={k}, {correct} correct of {samples} samples: need 1 <= k <= samples")
    return 1 - comb(samples - correct, k) / comb(samples, k)


def mean_pass_at_k(samples: int, correct: Sequence[int], k: int) -> float:
    """The mean over problems. correct: right responses of each problem."""
    return float(np.mean([pass_at_k(samples, right, k) for right in correct]))


def interval(samples: int, correct: Sequence[int], k: int) -> tuple[float, float]:
    """The bounds of a 95 % interval of the mean: percentiles of its value over problems drawn anew with replacement.

    The draws have a fixed seed, so that the same counts give the same interval. One problem gives no interval: both
    bounds are its value. Where all problems have the same value, the interval has no width either.
    """
    values = np.array([pass_at_k(samples, right, k) for right in correct])
    chosen = np.random.default_rng(0).multinomial(len(values), np.full(len(values), 1 / len(values)), RESAMPLES)
    low, high = np.quantile(chosen @ values / len(values), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def powers_of_two(samples: int) -> list[int]:
    """1, 2, 4 ... up to `samples`."""
    return [1 << power for power in range(samples.bit_length())]
