"""The config becomes typed settings once, nothing changes them, and a run records what it always recorded."""

import pytest
from composed import composed, composed_run
from omegaconf import OmegaConf
from pydantic import ValidationError

from experiments.settings.config import ARMS, FREE, METHOD, PLAN, WORK, RunConfig, run_config, steps_per_epoch


def test_the_record_is_the_resolved_config() -> None:
    hydra_config = composed("arm=das_unlimited", "setting=maths_small")
    config = run_config(hydra_config)
    assert OmegaConf.to_yaml(config.resolved) == OmegaConf.to_yaml(hydra_config, resolve=True)
    assert config.arm.budget == {"name": "unlimited", "tokens": 64}
    assert config.trainer.arguments["max_steps"] == config.trainer.max_steps


def test_the_number_of_problems_makes_a_new_config() -> None:
    config = composed_run("data=gsm8k")
    counted = config.with_problems(7473)
    assert (config.data.problems, config.resolved["data"]["problems"]) == (None, None)
    assert (counted.data.problems, counted.resolved["data"]["problems"]) == (7473, 7473)
    assert list(counted.resolved["data"]) == list(config.resolved["data"])  # config.yaml keeps the order of the keys
    with pytest.raises(ValidationError):
        config.seed = 1  # type: ignore[misc]


def test_each_setting_is_one_thing_to_a_run() -> None:
    """A setting that is in no list would be no part of a run's identity."""
    listed = [*METHOD, *WORK, *ARMS, *PLAN, *FREE]
    assert sorted(listed) == sorted(RunConfig.model_fields.keys() - {"resolved"})


def test_sizes() -> None:
    config = composed_run("+trainer.gradient_accumulation_steps=2", "engine.processes=3", "task.lock_step=false")
    assert (config.responses_per_step, config.problems_per_step) == (16 * 2 * 3, 12)
    assert steps_per_epoch(num_problems=25, problems_per_step=12) == 2
    assert steps_per_epoch(num_problems=5, problems_per_step=12) == 1
