"""Every number of the config refuses what is none of its kind, or not of its size. The cases come from configs/."""

import re
from typing import Any

import pytest
from composed import composed
from omegaconf import DictConfig, OmegaConf

from experiments.run.errors import UserError
from experiments.settings.checked import leaves
from experiments.settings.config import run_config
from experiments.settings.tasks import TASKS

NO_NUMBERS = ("fast", float("nan"), -1, 1e300)
# Settings that may be fractions although configs/ has whole numbers for them.
FRACTIONS = ("budget.ratio", "reward.timeout_s", "data.kinds", "data.held_out", "task.draft_us", "task.minutes")
FRACTIONS += ("task.warm_up_minutes", "task.seconds")
COMMON = ("policy", "trainer", "engine", "cluster", "drafter", "budget", "data", "reward", "eval", "checkpoint", "seed")


def numbers(config: DictConfig, *groups: str) -> dict[str, float]:
    """Every number in these groups of a config, by its key."""
    settings = OmegaConf.to_container(config, resolve=True)
    assert isinstance(settings, dict)
    found = leaves({group: settings[group] for group in groups})
    return {key: value for key, value in found if isinstance(value, int | float) and not isinstance(value, bool)}


def refused(config: DictConfig, key: str, value: Any) -> None:
    usual = OmegaConf.select(config, key)
    OmegaConf.update(config, key, value)
    with pytest.raises(UserError, match=rf"^{re.escape(key)}=.*: must be "):
        run_config(config)
    OmegaConf.update(config, key, usual)


@pytest.mark.parametrize("task", [None, *TASKS])
def test_what_is_no_number_of_its_kind_is_refused(task: str | None) -> None:
    """None: the settings that all tasks share."""
    config = composed(f"task={task}") if task else composed("cluster=ray", "eval.every=2")
    for key, value in numbers(config, *(("task",) if task else COMMON)).items():
        for wrong in NO_NUMBERS:
            refused(config, key, wrong)
        if isinstance(value, int) and not key.startswith(FRACTIONS):
            refused(config, key, value + 0.5)
