"""Settings to vary become arms."""

import pytest
from composed import composed

from experiments.compare.comparison import arm_changes, arm_configs, arm_overrides
from experiments.settings import compose
from experiments.settings.config import RunConfig, run_config


def arms(*overrides: str) -> dict[str, RunConfig]:
    whole = compose.composed(overrides)
    config = run_config(whole.config)
    return arm_configs(whole, arm_changes(config.arms, config.vary))


def test_an_arm_for_every_combination() -> None:
    configs = arms("+vary.drafter.window=[1,4]", "+vary.budget=[fixed,classes]")
    assert list(configs) == ["none", "window_1-fixed", "window_1-classes", "window_4-fixed", "window_4-classes"]
    config = configs["window_4-classes"]
    assert (config.drafter.options["window"], config.budget["name"]) == (4, "experiments.paper_budgets:Classes")
    assert (config.arm.name, config.arm.method) == ("window_4-classes", "das")
    assert configs["none"].drafter.options["window"] == 16


def test_varied_arms_replace_das() -> None:
    configs = arms("arms=[ngram,das,none]", "+vary.drafter.remember=[distributions,tokens]", "drafter.window=3")
    assert list(configs) == ["ngram", "remember_distributions", "remember_tokens", "none"]
    assert configs["remember_tokens"].drafter.options["remember"] == "tokens"
    assert configs["remember_tokens"].drafter.options["window"] == 3


def test_without_das_varied_arms_replace_the_last() -> None:
    configs = arms("arms=[none,ngram,eagle3_frozen]", "+vary.head.tokens=[1,3]", "+vary.arm.online=[false,true]")
    assert list(configs)[:3] == ["none", "ngram", "tokens_1-online_false"]
    deep = configs["tokens_3-online_true"]
    assert (deep.arm.method, deep.arm.online, deep.arm.speculative["num_speculative_tokens"]) == ("eagle3", True, 3)
    assert configs["tokens_1-online_false"].arm.speculative["num_speculative_tokens"] == 1
    assert configs["ngram"].arm.method == "ngram"


@pytest.mark.parametrize(
    "overrides",
    [
        ["setting=real_policy", "+vary.drafter=[history,paper]", "drafter.window=3"],
        ["arms=[none,eagle3_frozen]", "+vary.head.tokens=[1,3]", "+vary.arm.online=[true]"],
        ["arms=[none,self_draft]", "+vary.budget=[fixed,unlimited]", "budget=unlimited", "budget.tokens=9"],
        ["budget.tokens=32", "+vary.budget=[marginal,fixed]"],  # 32 is the default of marginal alone
        ["setting=maths_paper", "arms=[none,suffix,das]", "+vary.engine.exact=[bits]"],
    ],
)
def test_an_arm_is_what_its_own_command_line_makes(overrides: list[str]) -> None:
    """One that runs alone (task.lock_step=false) is started with it."""
    whole = compose.composed(overrides)
    config = run_config(whole.config)
    changes = arm_changes(config.arms, config.vary)
    for name, arm in arm_configs(whole, changes).items():
        alone = run_config(composed(*arm_overrides(overrides, changes[name])))
        assert (alone.arm.name, {**alone.resolved, "vary": {}}) == (name, {**arm.resolved, "vary": {}})
