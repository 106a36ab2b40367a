"""Make settings from plain values with pydantic, or refuse them in a line that names the setting and what fits.

A group of settings is a `Group`. Where the setting `name` says which group it is, a `Choice` has the groups by name.
"""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from experiments.run.errors import CONFIGS, UserError

LARGEST = 2**31 - 1  # of a number without a range of its own: only a typing error exceeds it
Settings = Mapping[str, Any]
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=0, le=LARGEST)]


class Group(BaseModel):
    """A group of settings: values are taken as they are, and nothing changes them."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def given(self) -> dict[str, Any]:
        """The settings as they were given, without defaults."""
        return self.model_dump(exclude_unset=True)


class Named(Group):
    name: str


Made = TypeVar("Made", bound=Group)


def checked(group: type[Made], settings: Any, key: str, choice: "Choice | None" = None) -> Made:
    """Make a group from its settings. key: its dotted name. choice: the choice that it is one of. Raises UserError."""
    if not isinstance(settings, Mapping):
        raise UserError(f"{key}={shown(settings)}: must be a group of settings")
    try:
        return group.model_validate(settings)
    except ValidationError as error:
        first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise UserError(_line(first, group, settings, key, choice)) from error


@dataclass(frozen=True, eq=False)
class Choice:
    """The groups among which `name` chooses in configs/GROUP."""

    group: str
    groups: Mapping[str, type[Group]]
    other: type[Group] | None = None  # for other names, such as module:Class
    is_other: Callable[[Settings], bool] = lambda settings: ":" in settings["name"]

    def made(self, settings: Any, key: str = "") -> Any:
        """Make the group that `settings` name. key: its dotted name, if it has another. Raises UserError."""
        key = key or self.group
        if not isinstance(settings, Mapping):
            raise UserError(f"{key}={shown(settings)}: must be a group of settings")
        choices = ", ".join(files_of(self.group))
        if "name" not in settings:
            raise UserError(f"{key}.name is missing: it must be one of configs/{self.group}: {choices}")
        name = settings["name"]
        if not isinstance(name, str):
            raise UserError(f"{key}.name={shown(name)}: must be text, one of configs/{self.group}")
        if name in self.groups:
            return checked(self.groups[name], settings, key, self)
        if self.other is not None and self.is_other(settings):
            return checked(self.other, settings, key, self)
        if name == "???":
            raise UserError(f"{key}=own: say which with {key}.name=module:Class")
        raise UserError(f"{key}.name={name}: choose with {self.group}=NAME, one of {choices}")


def files_of(group: str) -> list[str]:
    """Return the names of the files in configs/GROUP."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def arguments_of(kind: Callable[..., Any], base: type[Group] = Group, **kinds: Any) -> type[Group]:
    """Return the group whose settings are the arguments of a class or a function. kinds: annotations that replace
    its own."""
    hints = get_type_hints(kind.__init__ if isinstance(kind, type) else kind)  # type: ignore[misc]
    fields: dict[str, Any] = {
        name: (
            kinds.get(name, _bounded(hints[name])),
            ... if parameter.default is Parameter.empty else parameter.default,
        )
        for name, parameter in signature(kind).parameters.items()
    }
    return create_model(kind.__name__, __base__=base, **fields)


def _bounded(kind: Any) -> Any:
    """Return the annotation with the usual range for numbers that have none."""
    if get_origin(kind) in (Union, types.UnionType):
        return Union[tuple(map(_bounded, get_args(kind)))]  # noqa: UP007  made of values
    return {int: Whole, float: Number}.get(kind, kind)


def as_typed(value: Any) -> str:
    """Return the value as a user types it on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> str:
    """Return the value as a user types it, cut to the length of a line."""
    text = as_typed(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def plain(node: DictConfig) -> dict[str, Any]:
    """Return a config, or one of its groups, as plain values, with interpolations resolved. Raises OmegaConf's
    errors."""
    container = OmegaConf.to_container(node, resolve=True)
    assert isinstance(container, dict)
    return {str(key): value for key, value in container.items()}


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every setting below `node`. An empty group counts as a value."""
    if not isinstance(node, dict) or (prefix and not node):
        yield prefix, node
        return
    for key, value in node.items():
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))


def _line(error: Any, group: type[Group], settings: Any, key: str, choice: Choice | None) -> str:
    """Return the line about an error of pydantic."""
    kind, names, value = error["type"], list[str](), settings
    for part in error["loc"][: -1 if kind in ("extra_forbidden", "missing") else None]:
        if schema_at(group, [*names, part]) is None or part not in value:
            break  # a place in a list, or one of several kinds
        names, value = [*names, part], value[part]
    holder = ".".join([key, *names] if key else names)
    name = ".".join([holder, *map(str, error["loc"][-1:])]).lstrip(".")
    if kind == "missing":
        where = f"configs/{choice.group if choice else holder}" if holder else "configs/config.yaml"
        return f"{name} is missing; {where} shows its default"
    if kind == "extra_forbidden":
        return f"{name}: {_unknown(name, schema_at(group, names), None if names else choice)}"
    if cause := error.get("ctx", {}).get("error"):
        whole = isinstance(cause, UserError) or str(cause).startswith(holder)
        return str(cause) if whole else f"{holder}: {cause}"
    return f"{holder}={shown(value)}: must be {fits(schema_at(group, names))}"


def schema_at(group: type[Group], names: Sequence[str]) -> Any:
    """Return the JSON schema of a setting in a group, by the names that lead to it; None if it has no such setting."""
    whole = schema = group.model_json_schema()
    for name in names:
        found = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
        if not isinstance(found, dict):
            return None
        schema = whole["$defs"][found["$ref"].rpartition("/")[2]] if "$ref" in found else found
    return schema


def fits(schema: Mapping[str, Any]) -> str:
    """Return in words what fits a JSON schema."""
    if "anyOf" in schema:
        return " or ".join(map(fits, schema["anyOf"]))
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return f"one of {', '.join(map(str, choices))}" if len(choices) > 1 else str(choices[0])
    if (kind := schema.get("type")) in ("integer", "number"):
        span = f" from {schema['minimum']:g}" if "minimum" in schema else ""
        span += f" to {schema['maximum']:.10g}" if schema.get("maximum", LARGEST) != LARGEST else ""
        return f"a {'whole ' if kind == 'integer' else ''}number{span}{schema.get('or', '')}"
    if kind == "array":
        return f"a list, each {fits(schema['items'])}"
    return {"boolean": "true or false", "string": "text", "null": "null"}.get(str(kind), "a group of settings")


def _unknown(key: str, holder: Any, choice: Choice | None) -> str:
    """Return what to say about a setting that does not exist. holder: the JSON schema of what should have it."""
    prefix, _, name = key.rpartition(".")
    having = [each for each, other in (choice.groups.items() if choice else ()) if name in other.model_fields]
    if choice is not None and having:
        return f"only {choice.group}={' or '.join(having)} has this setting"
    return unknown(key, list(holder.get("properties", ())), choice.group if choice else prefix.split(".")[0])


def unknown(key: str, known: Sequence[str], group: str) -> str:
    """Return what to say about a setting that does not exist. known: those beside it. group: of configs/."""
    prefix, dot, name = key.rpartition(".")
    where = group if group and (CONFIGS / group).is_dir() else "config.yaml"
    close = get_close_matches(name, known, n=1)
    hint = f"did you mean {prefix}{dot}{close[0]}?" if close else f"look at configs/{where}"
    return f"there is no such setting; {hint}"
