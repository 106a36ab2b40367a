"""The config of every arm of a comparison: the user's overrides with the arm's own group."""

from collections.abc import Mapping, Sequence

from omegaconf import DictConfig

from experiments.harness.config import RunConfig, run_config
from experiments.harness.vary import variants
from experiments.run.compose import compose_config
from experiments.run.errors import CONFIGS, UserError
from experiments.run.plain import plain

VARIED = "das"  # the arm whose settings `vary` varies; where it is not among the arms, the last of several


def arm_configs(overrides_of_arms: Mapping[str, list[str]]) -> dict[str, RunConfig]:
    """The config of every arm, from the overrides that make it."""
    return {name: run_config(compose_config(overrides)) for name, overrides in overrides_of_arms.items()}


def arm_overrides(composed: DictConfig, names: Sequence[str], overrides: list[str]) -> dict[str, list[str]]:
    """Arm -> the overrides that make its config, in the order of `names`. With `vary`, variants replace one arm: das,
    or else the last.

    Raises UserError for arms that are named twice or do not exist, and for settings that cannot be varied.
    """
    if len(set(names)) != len(names) or not names:
        raise UserError(f"arms={list(names)}: name each arm once, the baseline first")
    overrides_of_variants = variants(plain(composed.vary))
    varied_arm = VARIED if VARIED in names else names[-1]
    if overrides_of_variants and varied_arm == names[0]:
        raise UserError(f"arms={list(names)}: vary replaces the arm {VARIED} or else the last one; add the one to vary")
    arms = {}
    for name in names:
        if name != varied_arm or not overrides_of_variants:
            arms[name] = own_overrides(name, overrides)
            continue
        for label, varied in overrides_of_variants.items():
            arms[label] = own_overrides(name, [*overrides, *varied, f"arm.name='{label}'"])
    return arms


def arm_config(name: str, overrides: list[str]) -> RunConfig:
    """The config of one arm."""
    return run_config(compose_config(own_overrides(name, overrides)))


def own_overrides(name: str, overrides: list[str]) -> list[str]:
    """The user's overrides with this arm's group. Raises UserError for an arm that does not exist."""
    if not (CONFIGS / "arm" / f"{name}.yaml").exists():
        known = sorted(path.stem for path in (CONFIGS / "arm").glob("*.yaml"))
        raise UserError(f"unknown arm {name!r}: choose from {', '.join(known)}")
    kept = [override for override in overrides if not override.startswith(("arm=", "+vary", "vary"))]
    return [*kept, f"arm={name}"]
