"""task=train: one arm alone."""

from pathlib import Path

from omegaconf import DictConfig

from das.training.turns import Alone
from experiments import setup
from experiments.arm import quiet_into, train_arm
from experiments.progress import Progress


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Train the arm, print a line a step."""
    setup.check(config)
    progress = Progress(int(config.trainer.max_steps))
    policy = setup.policy_directory(config, progress.note)
    progress.terminal = quiet_into(Path(folder) / "log.txt")
    train_arm(config, policy, Path(folder), Path(folder).name, Alone(progress.step))
    progress.note(f"run: {folder}")
