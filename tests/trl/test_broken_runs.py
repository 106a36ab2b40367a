"""What one rank finds ends all ranks, with the same line. Without agreement the others lose the connection (gloo) or
wait for two hours (NCCL).
"""

import re
from pathlib import Path

import pytest
from broken_run import STALE
from scripts import scripts, world

pytestmark = pytest.mark.slow

PATIENCE_S = 300  # far less than the two hours that a rank waits for the others
SMALL = [
    "task=train",
    "engine.processes=2",
    "arm=none",
    "checkpoint.every=0",
    "trainer.max_steps=4",
    "trainer.per_device_train_batch_size=4",
    "trainer.num_generations=4",
    "trainer.max_completion_length=16",
    "engine.max_model_len=288",
    "engine.weight_check_every=1",
    "data.problems=2",
    "reward=brevity",
    "trainer.learning_rate=0.001",
    "wandb=off",
]


def test_a_stale_tensor_on_one_rank_ends_all(tiny_policy: str, tmp_path: Path) -> None:
    """run.py in two processes that nobody watches over: each ends with the line."""
    settings = [*SMALL, f"policy.path={tiny_policy}", f"out={tmp_path}"]
    ended = scripts(["tests/trl/broken_run.py", *settings], world(2), PATIENCE_S, alone=True)
    first, second = (line for each in ended for line in each.errors.splitlines() if line.startswith("error: "))
    assert first == second
    assert re.match(rf"error: step 1: the new weights did not reach the engine: {re.escape(STALE)} differs in", first)
    assert "(rank 1)" in first
