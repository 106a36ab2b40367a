"""Deterministic training, and an engine in the same process that is spared it."""

import pytest
from scripts import run_script

from das.trl.support import invariance_problem

SCRIPT = """
import os, torch
from das.trl.determinism import algorithms_of_the_engine, train_deterministically
train_deterministically()
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and os.environ["FLASH_ATTENTION_DETERMINISTIC"] == "1"
assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
try:
    with algorithms_of_the_engine():
        assert not torch.are_deterministic_algorithms_enabled()
        raise KeyError
except KeyError:
    assert torch.are_deterministic_algorithms_enabled() and torch.is_deterministic_algorithms_warn_only_enabled()
"""


@pytest.mark.slow
def test_training_is_deterministic_and_the_engine_is_left_alone() -> None:
    run_script("-c", SCRIPT)


@pytest.mark.parametrize(("capability", "invariant", "refused"), [
    (80, True, True), (86, True, True), (89, True, True),
    (90, True, False), (100, True, False), (80, False, False), (None, True, False),
])  # fmt: skip
def test_batch_invariant_kernels_beside_a_trainer_need_hopper(
    capability: int | None, invariant: bool, refused: bool
) -> None:
    problem = invariance_problem(capability, invariant)
    assert bool(problem) == refused
    assert not refused or "engine.exact=distribution" in problem
