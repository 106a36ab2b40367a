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
# Tests of files that are not Python, by the beginning of their path.
NOT_PYTHON = {
    "das/drafter/": "tests/drafter/test_history.py",
    "das/engine/": "tests/verify/test_noise.py",
    "das/budget/": "tests/budget/test_budgets.py",
    "configs/": "tests/experiments/run/test_configs.py",
}
ALWAYS = "tests/test_docs.py"  # seconds; it also catches a page or a link that a move left behind


def changed() -> list[Path]:
    """Files that differ from the last commit or, if none does, those that the last commit changed; from the root."""
    status = ["git", "status", "--porcelain", "--untracked-files=all"]
    output = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [line[3:].split(" -> ")[-1] for line in output.splitlines()]
    if not names:
        last_commit = ["git", "show", "--name-only", "--format="]
        names = subprocess.run(last_commit, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in names if (ROOT / name).exists()]


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
        mirrors += [
            Path(test) for start, test in NOT_PYTHON.items() if str(path).startswith(start) and path.suffix != ".py"
        ]
        if path.parts[0] in ROOMS and path.suffix == ".py":
            module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
            mirrors += [test for test in tests if test.stem == f"test_{path.stem}"]
            importers += [test for test, modules in tests.items() if module in modules]
    return [str(test) for test in dict.fromkeys([*mirrors, *importers])][:LARGEST]


if __name__ == "__main__":
    print(" ".join([ALWAYS, *tests_of(changed())]))
