"""vary: settings of DAS to try, an arm for each combination, all on identical work in one comparison."""

import itertools
import re
from typing import Any

from omegaconf import DictConfig

from experiments.run.errors import CONFIGS, UserError
from experiments.run.plain import plain


def variants(vary: DictConfig) -> dict[str, list[str]]:
    """Arm's name -> its overrides. {"drafter": {"window": [1, 4]}} gives window_1 and window_4; a list in the place of
    a config group, {"budget": ["fixed", "classes"]}, gives fixed and classes. Raises UserError for what is no list."""
    axes = []
    for key, values in _leaves(plain(vary)):
        if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
            raise UserError(f"vary.{key}={values}: give a list of values, such as +vary.{key}=[1,4,16]")
        axes.append([(_label(key, value), f"{key}={_text(value)}") for value in values])
    found = {}
    for choice in itertools.product(*axes):
        name = "-".join(label for label, _ in choice)
        if (CONFIGS / "arm" / f"{name}.yaml").exists():
            raise UserError(f"vary: the arm {name} exists already, and is something else; vary two settings at once")
        found[name] = [override for _, override in choice]
    return found if axes else {}


def _leaves(node: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves = []
    for key, value in node.items():
        leaves += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return leaves


def _label(key: str, value: Any) -> str:
    """The last word of the key and the value; the value alone for a config group."""
    words = f"{key.rsplit('.', 1)[1]}_{_text(value)}" if "." in key else _text(value)
    return re.sub(r"[^\w.+-]", "_", words)


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
