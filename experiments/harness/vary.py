"""vary: settings of the arm das to try. Every combination becomes an arm of one comparison."""

import itertools
import re
from collections.abc import Mapping
from typing import Any

from experiments.run.errors import CONFIGS, UserError
from experiments.run.known_keys import leaves

VARIABLE = ("drafter", "head", "budget", "arm", "engine", "schedule")  # what leaves the arms their common work


def variants(vary: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name of an arm -> its overrides.

    {"drafter": {"window": [1, 4]}} gives the arms window_1 and window_4. A list in place of a config group,
    {"budget": ["fixed", "classes"]}, gives the arms fixed and classes.
    Raises UserError for values that are no list, for settings that change the work, and for an arm's name that
    configs/arm has already.
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
    """The last word of the key with the value; the value alone for a config group."""
    words = f"{key.rsplit('.', 1)[1]}_{_text(value)}" if "." in key else _text(value)
    return re.sub(r"[^\w.+-]", "_", words)


def _text(value: Any) -> str:
    """The value as the command line has it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
