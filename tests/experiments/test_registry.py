"""The list of tasks agrees with the config files and the generated page."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from smoke_tasks import SMOKE, TESTED

from experiments.reference import GROUPS, PAGE, PARTS, filled
from experiments.run.errors import CONFIGS
from experiments.settings.tasks import TASKS, usage

ROOT = Path(__file__).resolve().parents[2]


def test_every_task_has_a_config_and_a_module() -> None:
    assert sorted(TASKS) == sorted(path.stem for path in (CONFIGS / "task").glob("*.yaml"))
    assert SMOKE.keys() | TESTED.keys() == TASKS.keys() | {"every_arm"}
    for name, task in TASKS.items():
        assert task.name == name
        assert find_spec(task.module) is not None


@pytest.mark.slow
def test_no_task_loads_vllm_or_trl_before_it_has_checked_its_settings() -> None:
    program = (
        "import sys; from experiments.settings.tasks import TASKS; loaded = [task.load() for task in TASKS.values()]; "
        "assert loaded and not {'vllm', 'trl'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_the_reference_is_made_from_the_registry_and_the_configs() -> None:
    page = PAGE.read_text()
    assert filled(page) == page, "python -m experiments.reference"
    assert all(f"<!-- made: {part} -->" in page for part in PARTS)
    assert all(f"| `{name}` |" in page for name in TASKS)
    assert all(f"#### {group}" in page for group in GROUPS)


def test_help_lists_every_task() -> None:
    lines = usage().splitlines()
    for task in TASKS.values():
        assert any(line.split()[:1] == [task.name] and task.help in line for line in lines)
