"""Make typed settings from plain values, or refuse them in a line that names the setting, its value and what fits.

What a setting may be is said by the annotation of its field: bool, int, float, str, Literal, list[...], dict[str, ...],
X | None, a dataclass (a group of settings), Any. Annotated adds the Range of a number, or the table of the groups among
which a group's `name` chooses (Named). A class may have FURTHER, kinds of settings that it takes without a field, and
ADVICE.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from experiments.run.errors import CONFIGS, UserError

LARGEST = 2**31 - 1  # of a number without a Range: only a typing error exceeds it
Settings = Mapping[str, Any]
Given = Annotated[Settings, "given"]  # a field that holds the whole group, as it was given
Kind = Callable[..., Any] | Mapping[str, Any]  # what takes settings: a class or a function, or their kinds by name


@dataclass(frozen=True)
class Range:
    """Smallest and largest value of a number. No run of the papers comes near the largest one."""

    smallest: float = 0
    largest: float = LARGEST
    or_zero: bool = False  # 0 has a meaning of its own

    def __contains__(self, number: float) -> bool:
        return self.smallest <= number <= self.largest or (self.or_zero and number == 0)  # NaN is nowhere

    def __str__(self) -> str:
        return f"from {self.smallest:g} to {self.largest:.10g}{', or 0' if self.or_zero else ''}"


@dataclass(frozen=True, eq=False)
class Named:
    """The kinds of settings among which `name` chooses in a group of configs/.

    kinds: name -> what takes the settings. others: what takes those of any other name, with a setting that marks them.
    own: what takes those of a class of the user, module:Class, which refuses settings itself. hints: annotations that
    replace those of a kind's arguments. also: kinds of settings that are let through whatever the name. made: False if
    the settings stay plain values.
    """

    group: str
    kinds: Mapping[str, Kind]
    others: tuple[Kind, str] | None = None
    own: Kind | None = None
    hints: Settings = field(default_factory=dict)
    also: Settings = field(default_factory=dict)
    made: bool = True


def made(kind: Any, value: Any, key: str) -> Any:
    """Return the value as `kind` has it: a group becomes a dataclass. key: its dotted name. Raises UserError."""
    for option in _options(kind):
        bare, named = _bare(option, Named)
        if named is not None and value is not None:
            return _chosen(named, value, key)
        if isinstance(bare, type) and is_dataclass(bare) and (value is not None or NoneType not in _options(kind)):
            return group(bare, value, key)
    if get_origin(kind) is dict and isinstance(value, dict):
        return {name: made(get_args(kind)[1], each, f"{key}.{name}") for name, each in value.items()}
    if not _fits(kind, value):
        raise UserError(f"{key}={shown(value)}: must be {_words(kind)}")
    return value


def group(kind: Kind, settings: Any, key: str, named: Named | None = None, open_to_all: bool = False) -> Any:
    """Make `kind` from a group of settings. named: the table that chose it, for the lines about unknown settings.
    open_to_all: whether settings that `kind` does not have are let through. Raises UserError."""
    if not isinstance(settings, Mapping):
        raise UserError(f"{key}={shown(settings)}: must be a group of settings")
    accepted, optional = arguments(kind)
    further = {**getattr(kind, "FURTHER", {}), **(named.also if named else {})}
    replaced = {name: hint for name, hint in (named.hints if named else {}).items() if name in accepted}
    hints, prefix = {**further, **accepted, **replaced}, f"{key}." if key else ""
    for name in settings:
        if name not in hints and not open_to_all and not (name == "name" and named is not None):
            raise UserError(f"{prefix}{name}: {_unknown(str(name), kind, prefix, named)}")
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if hint == Given:
            values[name] = settings
        elif name in settings:
            values[name] = made(hint, settings[name], prefix + name)
        elif name not in optional and name not in further:
            where = f"configs/{named.group if named else key}" if key else "configs/config.yaml"
            raise UserError(f"{prefix}{name} is missing; {where} shows its default")
    if isinstance(kind, Mapping):
        return SimpleNamespace(**values)
    if named is not None and not named.made:
        return settings
    try:
        return kind(**{name: value for name, value in values.items() if name in accepted})
    except UserError:
        raise
    except ValueError as error:
        raise UserError(str(error) if key and str(error).startswith(key) else f"{key}: {error}") from error


def arguments(kind: Kind) -> tuple[dict[str, Any], set[str]]:
    """Return the annotations of what takes settings, by name, and the names that have defaults."""
    if isinstance(kind, Mapping):
        return dict(kind), set()
    plain_class = isinstance(kind, type) and not is_dataclass(kind)
    hints = get_type_hints(kind.__init__ if plain_class else kind, include_extras=True)
    parameters = signature(kind).parameters
    optional = {name for name, parameter in parameters.items() if parameter.default is not Parameter.empty}
    return {name: hints.get(name, Any) for name in parameters}, optional


def by_name(names_of_kinds: Mapping[Any, str]) -> dict[str, Any]:
    """Return name -> kind for a table of kind -> names, which stand in one text."""
    return {name: kind for kind, names in names_of_kinds.items() for name in names.split()}


def shown(value: Any) -> str:
    """Return the value as a user types it, cut to the length of a line."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _chosen(named: Named, settings: Any, key: str) -> Any:
    """Make the settings of a group whose `name` chooses among kinds."""
    if not isinstance(settings, Mapping):
        raise UserError(f"{key}={shown(settings)}: must be a group of settings")
    choices = ", ".join(sorted(path.stem for path in (CONFIGS / named.group).glob("*.yaml")))
    if "name" not in settings:
        raise UserError(f"{key}.name is missing: it must be one of configs/{named.group}: {choices}")
    name = settings["name"]
    if not isinstance(name, str):
        raise UserError(f"{key}.name={shown(name)}: must be text, one of configs/{named.group}")
    if ":" in name and named.own is not None:
        return group(named.own, settings, key, named, open_to_all=True)
    if name in named.kinds:
        return group(named.kinds[name], settings, key, named)
    if named.others is None or named.others[1] not in settings:
        if name == "???":
            raise UserError(f"{key}=own: say which with {key}.name=module:Class")
        raise UserError(f"{key}.name={name}: choose with {named.group}=NAME, one of {choices}")
    return group(named.others[0], settings, key, named)


def _unknown(name: str, kind: Kind, prefix: str, named: Named | None) -> str:
    """Return what to say about a setting that `kind` does not have."""
    having = [choice for choice, other in (named.kinds.items() if named else ()) if name in arguments(other)[0]]
    if named is not None and having:
        return f"only {named.group}={' or '.join(having)} has this setting"
    advice = getattr(kind, "ADVICE", None)  # a function: name -> what is known about it
    if advice is not None and (line := advice(name)):
        return str(line)
    close = get_close_matches(name, [*arguments(kind)[0], *getattr(kind, "FURTHER", ())], n=1)
    group = named.group if named else prefix.split(".")[0]
    where = group if group and (CONFIGS / group).is_dir() else "config.yaml"
    hint = f"did you mean {prefix}{close[0]}?" if close else f"look at configs/{where}"
    return f"there is no such setting; {hint}"


def _options(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _bare(kind: Any, mark: type) -> tuple[Any, Any]:
    """Return a kind without its Annotated, and the mark of this type that it had; None if it had none."""
    if get_origin(kind) is not Annotated:
        return kind, None
    bare, *marks = get_args(kind)
    return bare, next((each for each in marks if isinstance(each, mark)), None)


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value, which is no dataclass, is of this kind, and in its range."""
    if len(_options(kind)) > 1:
        return any(_fits(option, value) for option in _options(kind))
    kind, found = _bare(kind, Range)
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (int, float):
        whole = (int,) if origin is int else (int, float)
        return isinstance(value, whole) and not isinstance(value, bool) and value in (found or Range())
    if origin is Literal:
        return any(value == each and type(value) is type(each) for each in inner)
    if origin in (list, Sequence):
        return isinstance(value, list) and all(_fits(inner[0], each) for each in value)
    if origin in (dict, Mapping):
        return isinstance(value, dict)
    return origin is Any or (isinstance(origin, type) and isinstance(value, origin))


def _words(kind: Any) -> str:
    """Return in words what fits a kind."""
    if len(options := _options(kind)) > 1:
        return " or ".join(_words(option) for option in options)
    kind, found = _bare(kind, Range)
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (int, float):
        return f"a {'whole ' if origin is int else ''}number {found or Range()}"
    if origin is Literal:
        return f"one of {', '.join(map(str, inner))}"
    if origin in (list, Sequence):
        return f"a list, each {_words(inner[0])}"
    if origin in (dict, Mapping):
        return "a group of settings"
    return {NoneType: "null", bool: "true or false", str: "text"}.get(origin, "a value")


def leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every setting below `node`. An empty group counts as a value."""
    if not isinstance(node, dict) or (prefix and not node):
        yield prefix, node
        return
    for key, value in node.items():
        yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
