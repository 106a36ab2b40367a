"""The optimal budget compared with brute force, and at its limits."""

import numpy as np

from experiments.paper_budgets import budget_for, optimal_budget

INSTANCES = 500


def instance(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, float]:
    """1 to 64 requests of 1 to 16k tokens, with costs from free drafts to drafts that never pay."""
    requests = int(rng.integers(1, 65))
    length = np.exp(rng.uniform(0, np.log(16_384), requests))
    k = rng.uniform(0.02, 1.0, requests)
    alpha = np.exp(rng.uniform(np.log(0.02), np.log(2), requests))
    return length, k, alpha, 8e-3, 8e-3 / float(np.exp(rng.uniform(0, np.log(2000))))


def brute_force(length: np.ndarray, k: np.ndarray, alpha: np.ndarray, c_base: float, c_tok: float) -> float:
    """The smallest J over a grid of N that is refined around the best point several times.

    It shares no formula with the solver: the budget for N comes from inverting Eq 4 as it stands, J from Eq 5. The
    grids reach both limits.
    """

    def costs(passes: np.ndarray) -> np.ndarray:
        share = np.minimum(passes[:, None] / length, 1)  # N / l; at most 1, so that no budget is negative
        drafted = -(length / alpha) * np.log((share - (1 - k)) / k)
        most_passes = (length * (1 - k + k * np.exp(-alpha * drafted / length))).max(axis=1)
        return c_base * most_passes + c_tok * drafted.sum(axis=1)

    low, high = float((length * (1 - k)).max()), float(length.max())
    # Budgets grow without bound near the lower limit, so the grid is even in the logarithm of the distance to it.
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.linspace(np.log((high - low) * 1e-9), np.log(high - low), 200)
        best = np.inf
        for _ in range(4):
            grid_costs = costs(np.minimum(low + np.exp(logs), high))
            at = int(np.nanargmin(grid_costs))
            best = min(best, float(grid_costs[at]))
            logs = np.linspace(logs[max(at - 1, 0)], logs[min(at + 1, len(logs) - 1)], 60)
    return best


def passes_needed(drafted_R: np.ndarray, length_R: np.ndarray, k_R: np.ndarray, alpha_R: np.ndarray) -> np.ndarray:
    """Target passes that each request needs (Eq 4)."""
    return length_R * (1 - k_R + k_R * np.exp(-alpha_R * drafted_R / length_R))


def cost(
    drafted_R: np.ndarray, length_R: np.ndarray, k_R: np.ndarray, alpha_R: np.ndarray, c_base: float, c_tok: float
) -> float:
    """The cost J of Eq 5 without its constant C, in seconds."""
    return float(c_base * passes_needed(drafted_R, length_R, k_R, alpha_R).max() + c_tok * drafted_R.sum())


def test_no_worse_than_brute_force_on_random_instances() -> None:
    rng = np.random.default_rng(0)
    largest_error, num_undrafted = 0.0, 0
    for _ in range(INSTANCES):
        length, k, alpha, c_base, c_tok = instance(rng)
        drafted, _ = optimal_budget(length, k, alpha, c_base, c_tok)
        found = cost(drafted, length, k, alpha, c_base, c_tok)
        best = brute_force(length, k, alpha, c_base, c_tok)
        largest_error = max(largest_error, abs(found - best) / best)
        num_undrafted += not drafted.any()
    assert largest_error < 1e-5
    assert 0.05 < num_undrafted / INSTANCES < 0.95  # both cases occur


def test_feasibility_limit() -> None:
    """No budget suffices for max l (1 - k) passes or fewer. Near that limit the budget grows without bound."""
    length, k, alpha = (np.array([x]) for x in (100.0, 0.5, 1.0))
    assert np.isinf(budget_for(50.0, length, k, alpha)).all()
    assert np.isinf(budget_for(20.0, length, k, alpha)).all()
    assert np.isfinite(budget_for(50.001, length, k, alpha)).all()
    drafted, passes = optimal_budget(length, k, alpha, 1.0, 1e-12)
    assert 50 < passes < 50.001
    assert np.isfinite(drafted).all()
