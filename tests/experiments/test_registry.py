"""The registry agrees with the config files and the generated page; renamed settings name their successor."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.commands import markdown, usage
from experiments.registry import TASKS
from experiments.run.checks import check_values
from experiments.run.errors import CONFIGS
from experiments.run.renamed import RENAMED

ROOT = Path(__file__).resolve().parents[2]


def test_every_task_has_a_config_and_a_module() -> None:
    assert sorted(TASKS) == sorted(path.stem for path in (CONFIGS / "task").glob("*.yaml"))
    for name, task in TASKS.items():
        assert task.name == name
        assert find_spec(task.module) is not None


@pytest.mark.parametrize("name", TASKS)
def test_smoke_settings_compose(name: str) -> None:
    filled = [setting.format_map({"made": "made", "compare": "run"}) for setting in TASKS[name].smoke]
    chosen = [] if any(setting.startswith("experiment=") for setting in filled) else [f"task={name}"]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("config", overrides=[*chosen, *filled])
    assert config.task.name == name
    check_values(config)


def test_the_page_of_commands_is_generated_from_the_registry() -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == markdown() + "\n"


def test_help_lists_every_task() -> None:
    lines = usage().splitlines()
    for task in TASKS.values():
        assert any(line.split()[:1] == [task.name] and task.help in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["task=vary"], "unknown task 'vary': choose one of compare"),
        ([f"{next(iter(RENAMED))}=1"], f"is now called {next(iter(RENAMED.values()))}"),
        ([f"+vary.{next(iter(RENAMED))}=[1,2]"], f"is now called {next(iter(RENAMED.values()))}"),
    ],
)
def test_wrong_names_end_in_one_line(arguments: list[str], words: str) -> None:
    done = subprocess.run([sys.executable, "run.py", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
