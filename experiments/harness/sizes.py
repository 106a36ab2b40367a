"""How many responses, problems and steps: the arithmetic behind a training step, an epoch and the drafter's window."""

from collections.abc import Mapping
from typing import Any


def responses_per_step(trainer: Mapping[str, Any], processes: int) -> int:
    """Responses of a training step over all processes. trainer: arguments of TRL's GRPOConfig."""
    accumulated = trainer.get("gradient_accumulation_steps", 1)
    return int(trainer["per_device_train_batch_size"] * accumulated * processes)


def problems_per_step(trainer: Mapping[str, Any], processes: int) -> int:
    """Problems of a training step over all processes; each has `num_generations` responses."""
    return responses_per_step(trainer, processes) // int(trainer["num_generations"])


def steps_per_epoch(num_problems: int, problems_per_step: int) -> int:
    """Steps that go once through all problems; problems that do not fill a step are left out."""
    return max(1, num_problems // problems_per_step)
