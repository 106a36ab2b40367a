"""EfficientRollout's roofline: speedups by hand, and where its published constants say that drafts pay."""

import json
from pathlib import Path

import numpy as np
import pytest

from das.budget.latency import Array
from experiments.papers.efficient_rollout import Roofline, roofline

ROOT = Path(__file__).resolve().parents[3]
PUBLISHED = json.loads((ROOT / "experiments" / "papers" / "published.json").read_text())


def speedup(model: Roofline, B: Array, S: Array, gamma: Array, tau: Array) -> Array:
    """Time without drafts / time with drafts, where a cycle emits tau tokens for each request."""
    return tau * model.target(B, S) / (gamma * model.draft(B, S) + model.verify(B, S, gamma))


def test_speedup_is_the_ratio_of_times_per_token() -> None:
    # A target pass takes 10 ms, a draft pass 2.5.
    model = Roofline(
        W_T=1e10, W_D=2.5e9, C_dense=1e10, C_attn=0, F_eff=1e14, BW=1e12, kappa_eff=0, eta_D=1, c_T=0, c_D=0, c_V=0
    )
    one = np.array([1.0])
    assert speedup(model, one, one, 4 * one, 5 * one) == pytest.approx(5 * 10 / (4 * 2.5 + 10))
    wide = np.array([200.0])  # a token of each request takes 20 ms: verifying five takes 100 ms, drafting 80
    assert speedup(model, wide, one, 4 * one, 5 * one) == pytest.approx(5 * 20 / (4 * 20 + 100))


def test_boundary_of_efficient_rollout() -> None:
    """B*, the largest batch with a predicted speedup of at least 1.05, is as it was computed elsewhere."""
    batches = np.arange(1, 257)
    for name, rows in PUBLISHED["er_boundary"]["data"].items():
        model = roofline(PUBLISHED["er_constants"]["data"][name])
        for row in rows:
            gains = [speedup(model, batches, S, row["gamma"], row["tau"]) for S in row["S"]]
            assert [int(batches[gain >= 1.05].max(initial=0)) for gain in gains] == row["B_star"]
