"""Every choice of every config group composes and builds engine settings; so does every command named in the docs."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.harness import setup
from experiments.run.errors import CONFIGS

CHOICES = [f"{path.parent.name}={path.stem}" for path in sorted(CONFIGS.glob("*/*.yaml"))]
ROOT = CONFIGS.parent
COMMANDS = sorted(
    {
        command
        for text in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for command in re.findall(r"`python run\.py ?([^`]*)`", text.read_text().replace("\n", " "))
        if "..." not in command
    }
)


@pytest.mark.parametrize("choice", CHOICES)
def test_choice_composes(choice: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("config", overrides=[choice])
    settings = setup.engine_settings(config, "somewhere")
    assert settings.model == "somewhere"
    assert config.data.name not in setup.GENERATED or setup.mix(config)
    assert callable(setup.reward(config))


def test_docs_name_commands() -> None:
    assert len(COMMANDS) >= 6


@pytest.mark.parametrize("command", COMMANDS)
def test_command_in_docs_composes(command: str) -> None:
    overrides = [word for word in shlex.split(command) if word != "-m"]
    if "-m" in shlex.split(command):  # a sweep: its first job
        overrides = [word.split(",")[0] for word in overrides]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("config", overrides=overrides)
    assert (Path(ROOT) / "experiments" / f"{config.task.name}.py").exists()


@pytest.mark.parametrize("launcher", [path.stem for path in (CONFIGS / "hydra" / "launcher").glob("*.yaml")])
def test_launcher_composes(launcher: str) -> None:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = compose("config", overrides=[f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert config.hydra.launcher._target_.startswith("hydra_plugins.")
