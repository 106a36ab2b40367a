"""Configs as a command line composes them."""

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from experiments.harness.arm_configs import arm_config
from experiments.run.errors import CONFIGS
from experiments.settings.config import RunConfig, run_config


def composed(*overrides: str) -> DictConfig:
    """The config with these overrides, as Hydra composes it."""
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("config", overrides=list(overrides))


def composed_run(*overrides: str) -> RunConfig:
    """The same as the dataclass that the harness reads."""
    return run_config(composed(*overrides))


def composed_arm(arm: str, *overrides: str) -> RunConfig:
    """The config of an arm of a comparison."""
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return arm_config(arm, list(overrides))
