"""Make the config of every arm of a comparison from the user's overrides and the arm's name.

With the setting `vary`, every combination of the values to try becomes an arm.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.run.errors import CONFIGS, UserError
from experiments.settings.compose import compose_config
from experiments.settings.config import RunConfig, run_config
from experiments.settings.typed import leaves

VARIABLE = ("drafter", "head", "budget", "arm", "engine", "schedule")  # arms may differ in these
VARIED = "das"  # `vary` varies this arm; if it is not in the comparison, the last of several arms


def arm_configs(overrides_of_arms: Mapping[str, list[str]]) -> dict[str, RunConfig]:
    """Compose the config of every arm. overrides_of_arms: arm -> the overrides that make its config."""
    return {name: run_config(compose_config(overrides)) for name, overrides in overrides_of_arms.items()}


def arm_overrides(config: RunConfig, names: Sequence[str], overrides: list[str]) -> dict[str, list[str]]:
    """Return arm -> the overrides that make its config, in the order of `names`.

    config: read for `vary`. With `vary`, variants replace one arm.
    Raises UserError for arms that are named twice or do not exist, and for settings that cannot be varied.
    """
    if len(set(names)) != len(names) or not names:
        raise UserError(f"arms={list(names)}: name each arm once, the baseline first")
    overrides_of_variants = variants(config.vary)
    varied_arm = varies(names)
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


def varies(names: Sequence[str]) -> str:
    """Return the arm that variants replace: das, or the last if das is not named."""
    return VARIED if VARIED in names else names[-1]


def arm_config(name: str, overrides: list[str]) -> RunConfig:
    """Compose the config of the arm `name` from the user's overrides."""
    return run_config(compose_config(own_overrides(name, overrides)))


def own_overrides(name: str, overrides: list[str]) -> list[str]:
    """Return the user's overrides with arm=`name` added and `vary` removed. Raises UserError for an arm that does not
    exist."""
    if not (CONFIGS / "arm" / f"{name}.yaml").exists():
        known = sorted(path.stem for path in (CONFIGS / "arm").glob("*.yaml"))
        raise UserError(f"unknown arm {name!r}: choose from {', '.join(known)}")
    kept = [override for override in overrides if not override.startswith(("arm=", "+vary", "vary"))]
    return [*kept, f"arm={name}"]


def variants(vary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Make the variants that `vary` asks for. Returns name of a variant -> its overrides.

    {"drafter": {"window": [1, 4]}} gives the arms window_1 and window_4. A list in place of a config group,
    {"budget": ["fixed", "classes"]}, gives the arms fixed and classes. Raises UserError if values are not a list, if a
    setting changes the work of an arm, or if configs/arm has an arm of that name already.
    """
    axes = []
    for key, values in leaves(vary) if vary else ():
        if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
            raise UserError(f"vary.{key}={values}: give a list of values, such as +vary.{key}=[1,4,16]")
        if key.split(".")[0] not in VARIABLE or key == "engine.processes":
            raise UserError(
                f"vary.{key}: arms of one comparison do the same work, so they can differ in {', '.join(VARIABLE)} "
                "only, and not in engine.processes; run it once for each value: "
                f"python run.py -m {key}={','.join(map(_text, values))}"
            )
        axes.append([(_label(key, value), f"{key}={_text(value)}") for value in values])
    overrides_of_arms = {}
    for combination in itertools.product(*axes):
        name = "-".join(label for label, _ in combination)
        if (CONFIGS / "arm" / f"{name}.yaml").exists():
            raise UserError(
                f"vary: an arm {name} exists already in configs/arm; vary a second setting, so that the name differs"
            )
        overrides_of_arms[name] = [override for _, override in combination]
    return overrides_of_arms if axes else {}


def _label(key: str, value: Any) -> str:
    """Return the part of a variant's name that stands for one setting: the key's last word and the value, or for a
    config group only the value."""
    words = f"{key.rsplit('.', 1)[1]}_{_text(value)}" if "." in key else _text(value)
    return re.sub(r"[^\w.+-]", "_", words)


def _text(value: Any) -> str:
    """Return the value in the form in which a user types it on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
