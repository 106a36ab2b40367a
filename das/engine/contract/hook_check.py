"""Compare the hooks (the names of vLLM that das uses, hooks.py) with the sources of vLLM, installed or in a wheel.

Nothing is imported or installed."""

import ast
import functools
import re
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from das.engine.contract.hooks import HOOKS, Hook

Sources = Mapping[str, str]  # text of each module, by its dotted name


def installed_sources() -> dict[str, str]:
    """Returns the sources of the installed vLLM's modules; {} if there is none."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return {}
    root = Path(spec.origin).parent
    return {_module(path.relative_to(root.parent)): path.read_text("utf-8") for path in root.rglob("*.py")}


def wheel_sources(wheel: Path) -> dict[str, str]:
    """Returns the sources of vLLM's modules in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        return {_module(Path(name)): archive.read(name).decode("utf-8") for name in names}


def missing_hooks() -> list[str]:
    """Returns a line for each hook that every engine of das needs and that the installed vLLM lacks or changed."""
    found = differences(installed_sources())
    return [f"{hook} ({hook.why}): {instead}" for hook, instead in found.items() if hook.only_for is None]


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def differences(sources: Sources) -> dict[Hook, str]:
    """Returns hook -> the difference in words, for each hook that is missing or different in these sources."""

    @functools.cache
    def tree(module: str) -> ast.Module:
        return ast.parse(sources.get(module, ""))

    found: dict[Hook, str] = {}
    for hook in HOOKS:
        definitions = _definitions(tree(hook.module), hook.name)
        if not definitions:
            found[hook] = _elsewhere(sources, hook.name)
        elif hook.parameters is not None and not _takes(definitions[0], hook.parameters):
            found[hook] = _signature(definitions[0])
    return found


def _definitions(tree: ast.Module, name: str) -> list[ast.AST]:
    """Returns the places where a module defines a dotted name: statements, or assignments to an attribute of `self`."""
    first, _, attribute = name.partition(".")
    owners = [node for node in _statements(tree) if first in _names(node)]
    if not attribute:
        return owners
    classes = [node for node in owners if isinstance(node, ast.ClassDef)]
    members = [node for owner in classes for node in owner.body if attribute in _names(node)]
    assigned: list[ast.AST] = [
        node
        for owner in classes
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]
    bases = [base.id for owner in classes for base in owner.bases if isinstance(base, ast.Name)]
    inherited = [node for base in bases for node in _definitions(tree, f"{base}.{attribute}")]
    return [*members, *assigned, *inherited]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the statements directly below `node`, and those within an `if` or `try` there."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, ast.If | ast.Try):
            yield from _statements(child)


def _names(node: ast.AST) -> list[str]:
    """Returns the names that a statement defines."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name for alias in node.names]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def _takes(node: ast.AST, parameters: tuple[str, ...]) -> bool:
    """Returns whether a function's definition begins with these parameters and requires no further one.

    A name that is only imported passes, because its definition is in another module.
    """
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if not isinstance(node, ast.FunctionDef):
        return False
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
    num_required = len(names) - len(node.args.defaults)
    keywords_optional = all(default is not None for default in node.args.kw_defaults)
    return tuple(names[: len(parameters)]) == parameters and num_required <= len(parameters) and keywords_optional


def _signature(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef):
        return "no function"
    return f"takes ({', '.join(argument.arg for argument in (*node.args.posonlyargs, *node.args.args))})"


def _elsewhere(sources: Sources, name: str) -> str:
    """Returns "moved to MODULE" if another module defines the name, else "missing". For names that a module lacks."""
    first = name.partition(".")[0]
    definition = re.compile(rf"^(?:class|def) {first}\b|^{first}\b.*=", re.MULTILINE)
    for module, text in sources.items():
        if definition.search(text) and _definitions(ast.parse(text), name):
            return f"moved to {module}"
    return "missing"
