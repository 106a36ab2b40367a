"""The optimal number of tokens to draft for each request over a rollout, in the paper's model (das.md §2.4-2.6).

A request of length l with p drafted tokens has k l (1 - exp(-alpha p / l)) accepted tokens, so it needs
l (1 - k + k exp(-alpha p / l)) target passes. The rollout takes N passes, as many as its slowest request:

    J = c_base N + c_tok sum_i p_i + C                                                                       (Eqs 5, 6)
    p_i(N) = -(l_i / alpha_i) ln(1 - (1 - N / l_i) / k_i)  where N < l_i, else 0        N > max_i l_i (1 - k_i)
    dJ/dN = c_base - c_tok sum_{l_i > N} 1 / (alpha_i (k_i - 1 + N / l_i))

J is convex in N and dJ/dN rises, so bisection finds its zero. The paper's Eq 7 prints ln(1 - k_i (1 - N / l_i)). With
that budget a request still needs l (1 - k^2 (1 - N / l)) passes, more than N unless k = 1.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def budget_for(passes: float, length_R: Array, k_R: Array, alpha_R: Array) -> Array:
    """Returns p_i(N): the fewest drafted tokens with which each request ends within `passes`; inf if none suffice."""
    saved = np.clip(1 - passes / length_R, 0, None) / k_R  # saved passes, as a share of the most that drafts can save
    with np.errstate(divide="ignore"):
        return np.where(saved < 1, -length_R / alpha_R * np.log1p(-np.minimum(saved, 1)), np.inf)


def optimal_budget(length_R: Array, k_R: Array, alpha_R: Array, c_base: float, c_tok: float) -> tuple[Array, float]:
    """Returns the budget that minimises J: p*, each request's tokens to draft over the rollout, and its passes N*.

    If drafts never pay, all p* are 0.

    length_R: remaining tokens, > 0. k_R: in (0, 1]. alpha_R: > 0. c_base, c_tok: seconds of a pass and of a token, > 0.
    Raises ValueError for parameters out of these ranges.
    """
    if not (length_R.size and (length_R > 0).all() and (alpha_R > 0).all() and c_base > 0 and c_tok > 0):
        raise ValueError("optimal budget needs lengths, alpha, c_base and c_tok above 0, and at least one request")
    if not ((k_R > 0) & (k_R <= 1)).all():
        raise ValueError(f"optimal budget needs 0 < k <= 1, got {k_R.min()} to {k_R.max()}")

    min_passes, max_passes = float((length_R * (1 - k_R)).max()), float(length_R.max())

    def slope(passes: float) -> float:
        drafted = length_R > passes
        room = k_R[drafted] - 1 + passes / length_R[drafted]
        return c_base - c_tok * float(np.sum(1 / (alpha_R[drafted] * np.maximum(room, 1e-300))))

    low, high = min_passes, max_passes
    for _ in range(100):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if slope(middle) < 0:
            low = middle
        else:
            high = middle
    # If J falls all the way up to the longest request, `high` never moves and no request is drafted for.
    return budget_for(high, length_R, k_R, alpha_R), high
