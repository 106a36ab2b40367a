"""Data and rewards that do not go together, and limits that cannot be, are refused; those that do work end to end."""

import random

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from experiments.harness import setup
from experiments.run.errors import CONFIGS, UserError
from experiments.small_policy.programs.task import worked_program
from rewards.sandbox import Sandbox, SandboxError


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("config", overrides=list(overrides))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["reward=code"], "cannot judge data=arithmetic"),
        (["data=programs"], "reward=maths cannot judge data=programs"),
        (["data=math500", "reward=code"], "reward=code cannot judge data=math500: choose maths or brevity"),
        (["data=deepcoder"], "reward=maths cannot judge data=deepcoder: choose code or brevity"),
        (["data.judged_by=taste"], "data.judged_by=taste: choose maths or code"),
        (["data=programs", "reward=code", "reward.isolation=none"], "choose full or weak"),
        (["data=programs", "reward=code", "reward.limits.cpu_s=0"], "reward.limits.cpu_s=0"),
        (["data=programs", "reward=code", "reward.limits.cpu_s=1.5"], "reward.limits.cpu_s=1.5"),
        (["data=programs", "reward=code", "reward.limits.wall_s=inf"], "reward.limits.wall_s=inf"),
        (["data=programs", "reward=code", "+reward.limits.disk_mb=1"], "reward.limits has no disk_mb"),
        (["data=programs", "reward=code", "reward.parallel=0"], "reward.parallel=0"),
        (["data=programs", "reward=code", "reward.isolation=weak", "reward.limits.memory_mb=8"], "does not pass"),
    ],
)
def test_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        setup.check_reward(composed(*overrides))


def test_programs_are_rewarded() -> None:
    try:
        Sandbox(1, setup.Limits()).close()
        isolation = "full"
    except SandboxError:
        isolation = "weak"
    config = composed("data=programs", "reward=code", "reward.parallel=1", f"reward.isolation={isolation}")
    setup.check_reward(config)
    rows = setup.dataset(config, "")
    answers = [worked_program(row["prompt"][0]["content"], random.Random(0)) for row in rows]
    completions = [[{"role": "assistant", "content": answer}] for answer in [*answers, "def f(x): return x"]]
    rewards = setup.reward(config)(completions=completions, tests=[*rows["tests"], rows[0]["tests"]])
    assert rewards[-1] == 0.0
    assert sum(rewards) >= 1


def test_arithmetic_is_rewarded() -> None:
    config = composed()
    setup.check_reward(config)
    row = setup.dataset(config, "")[0]
    completions = [[{"role": "assistant", "content": text}] for text in (f"\\boxed{{{row['answer']}}}", "\\boxed{99}")]
    assert setup.reward(config)(completions=completions, answer=[row["answer"]] * 2) == [1.0, 0.0]
