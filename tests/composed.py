"""Configs as a command line composes them."""

from omegaconf import DictConfig

from experiments.settings import compose
from experiments.settings.config import RunConfig, run_config


def composed(*overrides: str) -> DictConfig:
    """The config with these overrides, as Hydra composes it."""
    return compose.composed(overrides).config


def composed_run(*overrides: str) -> RunConfig:
    """The same as the settings that the harness reads."""
    return run_config(composed(*overrides))


def composed_arm(arm: str, *overrides: str) -> RunConfig:
    """The config of an arm of a comparison."""
    return run_config(compose.composed(overrides).changed({"arm": arm}))
