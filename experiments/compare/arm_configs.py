"""Make the settings of every arm of a comparison from the composed config.

With the setting `vary`, every combination of the values to try becomes an arm.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.run.errors import CONFIGS, UserError
from experiments.settings.checked import leaves
from experiments.settings.compose import Composed
from experiments.settings.config import METHOD, RunConfig, run_config

Changes = Mapping[str, Any]  # settings of an arm that differ from the comparison's, by key or config group
VARIED = "das"  # `vary` varies this arm; if it is not in the comparison, the last of several arms


def arm_configs(composed: Composed, changes: Mapping[str, Changes]) -> dict[str, RunConfig]:
    """Return the settings of every arm. changes: of every arm."""
    return {name: run_config(composed.changed(changed)) for name, changed in changes.items()}


def arm_changes(names: Sequence[str], vary: Mapping[str, Any]) -> dict[str, Changes]:
    """Return arm -> its changes, in the order of `names`. With `vary`, variants replace one arm.

    Raises UserError for arms that are named twice or do not exist, and for settings that cannot be varied.
    """
    if len(set(names)) != len(names) or not names:
        raise UserError(f"arms={list(names)}: name each arm once, the baseline first")
    known = sorted(path.stem for path in (CONFIGS / "arm").glob("*.yaml"))
    for name in names:
        if name not in known:
            raise UserError(f"unknown arm {name!r}: choose from {', '.join(known)}")
    varied = variants(vary)
    varied_arm = VARIED if VARIED in names else names[-1]
    if varied and varied_arm == names[0]:
        raise UserError(f"arms={list(names)}: vary replaces the arm {VARIED} or else the last one; add the one to vary")
    arms: dict[str, Changes] = {}
    for name in names:
        if name != varied_arm or not varied:
            arms[name] = {"arm": name}
            continue
        for label, changed in varied.items():
            arms[label] = {"arm": name, **changed, "arm.name": label}
    return arms


def arm_overrides(overrides: Sequence[str], changes: Changes) -> list[str]:
    """Return the overrides of a command line that trains an arm alone. overrides: those of the comparison."""
    kept = [override for override in overrides if not override.startswith(("arm=", "+vary", "vary"))]
    return [*kept, *(f"{key}={_text(value)}" for key, value in changes.items() if key != "arm.name"), *_named(changes)]


def _named(changes: Changes) -> list[str]:
    return [f"arm.name='{changes['arm.name']}'"] if "arm.name" in changes else []


def variants(vary: Mapping[str, Any]) -> dict[str, Changes]:
    """Make the variants that `vary` asks for. Returns name of a variant -> its changes.

    {"drafter": {"window": [1, 4]}} gives the arms window_1 and window_4. A list in place of a config group,
    {"budget": ["fixed", "classes"]}, gives the arms fixed and classes. Raises UserError if values are not a list, if a
    setting changes the work of an arm, or if configs/arm has an arm of that name already.
    """
    axes = []
    for key, values in leaves(vary) if vary else ():
        if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
            raise UserError(f"vary.{key}={values}: give a list of values, such as +vary.{key}=[1,4,16]")
        if key.split(".")[0] not in METHOD or key == "engine.processes":
            raise UserError(
                f"vary.{key}: arms of one comparison do the same work, so they can differ in {', '.join(METHOD)} "
                "only, and not in engine.processes; run it once for each value: "
                f"python run.py -m {key}={','.join(map(_text, values))}"
            )
        axes.append([(_label(key, value), (key, value)) for value in values])
    arms: dict[str, Changes] = {}
    for combination in itertools.product(*axes):
        name = "-".join(label for label, _ in combination)
        if (CONFIGS / "arm" / f"{name}.yaml").exists():
            raise UserError(
                f"vary: an arm {name} exists already in configs/arm; vary a second setting, so that the name differs"
            )
        arms[name] = dict(change for _, change in combination)
    return arms if axes else {}


def _label(key: str, value: Any) -> str:
    """Return the part of a variant's name that stands for one setting: the key's last word and the value, or for a
    config group only the value."""
    words = f"{key.rsplit('.', 1)[1]}_{_text(value)}" if "." in key else _text(value)
    return re.sub(r"[^\w.+-]", "_", words)


def _text(value: Any) -> str:
    """Return the value in the form in which a user types it on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
