"""Print the test files of what changed since the last commit (or in it, if nothing has): `make check` runs them.

A changed test file is its own test. A changed module is tested by the files that mirror its name, and by those that
import it directly. At most LARGEST files are printed, mirrors first; `make test` runs everything.
"""

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("das", "experiments", "rewards", "analysis")
LARGEST = 8  # test files: what 90 seconds have room for, beside lint and types
ALWAYS = "tests/test_docs.py"  # seconds; it also catches a page or a link that a move left behind


def changed() -> list[Path]:
    """Python files that differ from the last commit, or that the last commit changed; relative to the root."""
    for command in (
        ["git", "status", "--porcelain", "--untracked-files=all"],
        ["git", "show", "--name-only", "--format="],
    ):
        output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        names = [line[3:].split(" -> ")[-1] if command[1] == "status" else line for line in output.splitlines()]
        paths = [Path(name) for name in names if name.endswith(".py") and (ROOT / name).exists()]
        if paths:
            return paths
    return []


def imported(test: Path) -> set[str]:
    """Modules that a test file imports, with `from package import name` as package.name too."""
    modules = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def tests_of(paths: list[Path]) -> list[str]:
    """Test files of the changed files, mirrors first, each once."""
    tests = {test.relative_to(ROOT): imported(test) for test in sorted((ROOT / "tests").rglob("test_*.py"))}
    mirrors = [path for path in paths if path in tests]
    importers = []
    for path in paths:
        if path.parts[0] in ROOMS:
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            mirrors += [test for test in tests if test.stem == f"test_{path.stem}"]
            importers += [test for test, modules in tests.items() if module in modules]
    return [str(test) for test in dict.fromkeys([*mirrors, *importers])][:LARGEST]


if __name__ == "__main__":
    print(" ".join([ALWAYS, *tests_of(changed())]))
