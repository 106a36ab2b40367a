"""Refuse unknown settings. A setting is known if configs/ names it, or if the class that takes its group has a field
of that name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from das.drafter.options import DrafterOptions
from experiments.run.errors import CONFIGS, UserError
from experiments.run.trl_arguments import TAKEN, instead

GROUPS = ("policy", "data", "reward", "trainer", "engine", "cluster", "drafter", "head", "budget", "arm")
# Groups whose files have different settings; `name` says which file was chosen. `arm` is not among them, because in a
# comparison all arms get the settings that the user gives for one of them.
NAMED = ("policy", "data", "reward", "cluster", "budget", "task")
# Groups in which every name is allowed: their settings are passed on unchanged, or checked by the code that reads them.
OPEN = {
    *("arm.speculative", "engine.extra", "policy.chat_template_kwargs", "trainer.chat_template_kwargs"),
    "trainer.model_init_kwargs",
    *("data.hub", "data.kinds", "data.options", "reward.limits", "task.policies", "vary", "experiment"),
}
BUDGETS = ("arm.budget", "budget.over")  # settings that contain the settings of a budget


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse settings that nothing reads. config: the whole config as plain values. Raises UserError with a one-line
    message."""
    for key, value in config.items():
        if key in (*GROUPS, "task"):
            _check_group(key, key, value)
        elif key not in OPEN:
            top = _parents(plain_tree(CONFIGS / "config.yaml"))
            for leaf, _ in leaves(value, key):
                if leaf not in top:
                    raise UserError(_no_such("", leaf, top, "look at configs/config.yaml"))


def check_present(config: Mapping[str, Any]) -> None:
    """Refuse a config that lacks a setting of config.yaml, or of the file that a group's name says. Raises UserError.

    config: the whole config of a command line. That of an earlier run may lack settings that are new.
    """
    for key in plain_tree(CONFIGS / "config.yaml"):
        if key not in config:
            raise UserError(f"{key} is missing, which configs/config.yaml has")
    for group in NAMED:
        settings = config.get(group)
        if not isinstance(settings, Mapping):
            continue  # checks.py refuses it
        if "name" not in settings:
            raise UserError(f"{group}.name is missing: choose with {group}=NAME")
        path = CONFIGS / group / f"{settings['name']}.yaml"
        for key in plain_tree(path) if path.exists() else ():
            if key not in settings:
                raise UserError(f"{group}.{key} is missing, which {group}={path.stem} has")


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every setting below `node`. An empty group counts as a value."""
    if not isinstance(node, dict) or (prefix and not node):
        yield prefix, node
        return
    for key, value in node.items():
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))


@cache
def plain_tree(path: Path) -> dict[str, Any]:
    """Read the settings that one file of configs/ names itself, without those that it inherits through `defaults`."""
    tree = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items() if key not in ("defaults", "hydra")}


def _check_group(group: str, prefix: str, node: Any) -> None:
    """Refuse unknown settings in `node`, a part of the config. group: folder of configs/ that names the known settings.
    prefix: node's key."""
    if not isinstance(node, dict):
        return  # checks.py refuses it
    choice = node.get("name") if group in NAMED else None
    if group in ("drafter", "budget") and ":" in str(node.get("name")):
        return  # the user's own class refuses settings that it does not take
    known = _keys(group, choice)
    for key, value in node.items():
        if f"{group}.{key}" in BUDGETS and isinstance(value, dict):
            if isinstance(value.get("name"), str | None):
                _check_group("budget", f"{prefix}.{key}", value)
            if not isinstance(value.get("name"), str):
                raise UserError(f"{prefix}.{key}.name must be given, and must be one of configs/budget")
            continue
        for leaf, _ in leaves(value, key):
            parents = {leaf[:end] for end, letter in enumerate(leaf) if letter == "."}
            opened = OPEN & {f"{group}.{name}" for name in (leaf, *parents)}
            if leaf not in known and not opened and key not in _fields(group):
                raise UserError(_refusal(group, choice, prefix, leaf))


def _refusal(group: str, choice: str | None, prefix: str, leaf: str) -> str:
    """Return an error line about an unknown setting of a group. It says what to change."""
    choices = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml") if leaf in _keys(group, path.stem))
    if choice is not None and choices:
        return f"{prefix}.{leaf}: only {group}={' or '.join(choices)} has this setting"
    if group == "trainer" and (advice := instead(leaf)):
        return f"{prefix}.{leaf}: a run does not take this argument of TRL; {advice}"
    known = {*_keys(group, None), *_fields(group)} if group != "task" else _keys(group, choice)
    more = ", or at TAKEN in experiments/run/trl_arguments.py" if group == "trainer" else ""
    return _no_such(f"{prefix}.", leaf, known, f"look at configs/{group}{more}")


def _no_such(prefix: str, key: str, known: set[str], where: str) -> str:
    """Return an error line about an unknown key. known: the keys of which it might be a misspelling."""
    close = get_close_matches(key, [name for name in known if not key.startswith(f"{name}.")], n=1)
    return f"{prefix}{key}: there is no such setting; {f'did you mean {prefix}{close[0]}?' if close else where}"


@cache
def _keys(group: str, choice: str | None) -> set[str]:
    """The known dotted keys of a group: the keys in its file `choice`, and keys that configs/setting adds to the group.

    If there is no such file (the user has one elsewhere), the keys of all files of the group are known.
    """
    chosen = CONFIGS / group / f"{choice}.yaml"
    keys = set()
    for path in [chosen] if chosen.exists() else sorted((CONFIGS / group).glob("*.yaml")):
        keys |= _of_file(path)
    for path in (CONFIGS / "setting").glob("*.yaml"):
        keys |= _parents(plain_tree(path).get(group, {}))
    return keys


def _of_file(path: Path) -> set[str]:
    """The dotted keys of a file, including those that it inherits from other files of its group."""
    bases = OmegaConf.select(OmegaConf.load(path), "defaults", default=[])
    inherited = (_of_file(path.parent / f"{base}.yaml") for base in bases if base != "_self_")
    return _parents(plain_tree(path)).union(*inherited)


def _parents(tree: dict[str, Any]) -> set[str]:
    """Return the dotted key of every setting and every group of settings in a tree."""
    keys = {leaf for leaf, _ in leaves(tree)}
    return keys | {key[:end] for key in keys for end, letter in enumerate(key) if letter == "."}


@cache
def _fields(group: str) -> frozenset[str]:
    """Return the settings of a group that are known although configs/ does not name them: fields of the class that
    takes them."""
    if group == "drafter":
        return frozenset(field.name for field in fields(DrafterOptions))
    if group == "trainer":
        return frozenset(TAKEN)
    return frozenset()
