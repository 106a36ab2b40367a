"""The config of every arm of a comparison: the user's overrides with the arm's own group."""

from omegaconf import DictConfig

from experiments.harness.vary import variants
from experiments.run.errors import CONFIGS, UserError, compose_config


def arm_configs(config: DictConfig, overrides: list[str]) -> dict[str, DictConfig]:
    """Every arm's config, in order, the baseline first."""
    return {name: compose_config(own) for name, own in arm_overrides(config, overrides).items()}


def arm_overrides(config: DictConfig, overrides: list[str]) -> dict[str, list[str]]:
    """What makes each arm's config; settings to vary take the place of arm das."""
    names = list(config.arms)
    if len(set(names)) != len(names) or not names:
        raise UserError(f"arms={names}: name each arm once, the baseline first")
    found = variants(config.vary)
    if found and "das" not in names:
        raise UserError(f"arms={names}: vary takes the place of arm das, which is not among them")
    arms = {}
    for name in names:
        if name != "das" or not found:
            arms[name] = own_overrides(name, overrides)
            continue
        for label, own in found.items():
            arms[label] = own_overrides("das", [*overrides, *own, f"arm.name='{label}'"])
    return arms


def arm_config(name: str, overrides: list[str]) -> DictConfig:
    """The config of one arm."""
    return compose_config(own_overrides(name, overrides))


def own_overrides(name: str, overrides: list[str]) -> list[str]:
    """The user's overrides with this arm's group. Raises UserError for an arm that does not exist."""
    if not (CONFIGS / "arm" / f"{name}.yaml").exists():
        known = sorted(path.stem for path in (CONFIGS / "arm").glob("*.yaml"))
        raise UserError(f"unknown arm {name!r}: choose from {', '.join(known)}")
    own = [override for override in overrides if not override.startswith(("arm=", "+vary", "vary"))]
    return [*own, f"arm={name}"]
