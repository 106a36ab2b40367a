"""What `make run` installs is enough: no module imports a package that is only among the test packages."""

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("das", "experiments", "rewards", "analysis")
OPTIONAL = {"arctic_inference"}  # `make peers` installs it; tasks say so where it is missing


def imported(path: Path) -> Iterator[str]:
    """Top-level names of the packages that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def canonical(name: str) -> str:
    """A distribution's name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(file: str) -> set[str]:
    lines = (ROOT / "requirements" / file).read_text().splitlines()
    return {canonical(line.split("==")[0]) for line in lines if "==" in line}


def test_run_time_packages_are_pinned() -> None:
    files = [ROOT / "run.py", *(path for package in OURS for path in (ROOT / package).rglob("*.py"))]
    names = {name for path in files for name in imported(path)}
    names -= {*sys.stdlib_module_names, *OURS, *OPTIONAL}
    distributions = packages_distributions()
    run_time = pinned("cpu.txt")
    missing = {name for name in names if not run_time & {canonical(found) for found in distributions.get(name, [])}}
    assert not missing


def test_the_sandbox_of_rewards_finds_its_modules() -> None:
    """LeetCode's solutions use these modules without importing them."""
    from rewards import solution

    named = {*solution._STARS, *solution._MODULES} - set(sys.stdlib_module_names)
    assert {canonical(name) for name in named} <= pinned("cpu.txt") & pinned("gpu.txt")
