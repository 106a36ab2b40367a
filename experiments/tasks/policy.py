"""task=policy: make the small policy; measure its accuracy and how long its responses are."""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from experiments.harness.config import run_config
from experiments.harness.data import weight_of_chain_steps
from experiments.harness.policies import policy_directory
from experiments.harness.validate import check
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(composed: DictConfig, overrides: list[str], folder: str) -> None:
    """Sample the policy on the training distribution; print its accuracy and lengths, draw a histogram of lengths."""
    config = run_config(composed)
    check(config)
    if config.data.name != "arithmetic":
        raise UserError(f"data={config.data.name}: task=policy measures answers to data=arithmetic only")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config.resolved)
    policy = policy_directory(config, progress.note)
    from experiments.small_policy.arithmetic import make_training_problems
    from experiments.small_policy.measure import measure_policy, plot_lengths

    measured: dict[str, Any] = measure_policy(
        Path(policy),
        make_training_problems(config.task["problems"], seed=config.seed, mix=weight_of_chain_steps(config.data)),
        samples=config.task["samples"],
        temperature=config.trainer.temperature,
        max_tokens=config.trainer.max_completion_length,
        seed=config.seed,
    )
    plot_lengths(measured["lengths"], Path(folder) / "lengths.png")
    numbers = {key: value for key, value in measured.items() if isinstance(value, int | float)}
    for key, value in numbers.items():
        progress.note(f"{key:20s} {value:.3f}")
    progress.note(f"histogram: {folder}/lengths.png")
    progress.note(f"result: {run_folder.write_result({**numbers, 'policy': policy})}")
