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

LONG = "trainer.max_completion_length=160"  # the prefix cache holds blocks of 128 tokens


def error_lines(how: str, policy: str, out: Path, processes: int, *overrides: str) -> list[str]:
    """Run run.py, broken, in so many processes that nobody watches over. Returns the line with which each ends."""
    settings = [*SMALL, f"policy.path={policy}", f"out={out}", f"engine.processes={processes}", *overrides]
    ended = scripts(["tests/trl/broken_run.py", how, *settings], world(processes), PATIENCE_S, alone=True)
    return [line for each in ended for line in each.errors.splitlines() if line.startswith("error: ")]


def test_a_stale_tensor_on_one_rank_ends_all(tiny_policy: str, tmp_path: Path) -> None:
    first, second = error_lines("stale", tiny_policy, tmp_path, 2)
    assert first == second
    assert re.match(rf"error: step 1: the new weights did not reach the engine: {re.escape(STALE)} differs in", first)
    assert "(rank 1)" in first


def test_a_prefix_cache_of_older_weights_ends_the_run(tiny_policy: str, tmp_path: Path) -> None:
    (line,) = error_lines("cache", tiny_policy, tmp_path, 1, LONG)
    assert re.match(r"error: step 1: the engine's prefix cache holds \d+ blocks of older weights", line)
