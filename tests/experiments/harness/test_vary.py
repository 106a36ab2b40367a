"""Settings to vary become arms."""

import pytest
from hydra import compose, initialize_config_dir

from experiments.harness.arms import arm_configs
from experiments.run.errors import CONFIGS, UserError


def arms(*overrides: str) -> dict[str, object]:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return dict(arm_configs(compose("config", overrides=list(overrides)), list(overrides)))


def test_nothing_to_vary() -> None:
    assert list(arms()) == ["none", "das"]


def test_an_arm_for_every_combination() -> None:
    found = arms("+vary.drafter.window=[1,4]", "+vary.budget=[fixed,classes]")
    assert list(found) == ["none", "window_1-fixed", "window_1-classes", "window_4-fixed", "window_4-classes"]
    config = found["window_4-classes"]
    assert (config.drafter.window, config.budget.name, config.arm.name, config.arm.method) == (
        4,
        "classes",
        "window_4-classes",
        "das",
    )
    assert found["none"].drafter.window == 16


def test_varied_arms_take_the_place_of_das() -> None:
    found = arms("arms=[ngram,das,none]", "+vary.drafter.scope=[problem+request,own]", "drafter.window=3")
    assert list(found) == ["ngram", "scope_problem+request", "scope_own", "none"]
    assert found["scope_own"].drafter.scope == "own"
    assert found["scope_own"].drafter.window == 3


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["+vary.drafter.window=4"], "vary.drafter.window=4: give a list"),
        (["+vary.drafter.window=[]"], "give a list"),
        (["+vary.drafter.window=[1]", "arms=[none]"], "takes the place of arm das"),
        (["+vary.drafter.windows=[1]"], "windows"),
        (["+vary.budget=[none,fixed]"], "arm none exists already"),
    ],
)
def test_bad_vary(overrides: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says.replace("[", r"\[")):
        arms(*overrides)
