"""Settings to vary become arms."""

from hydra import compose, initialize_config_dir

from experiments.harness.arm_configs import arm_configs, arm_overrides
from experiments.run.errors import CONFIGS
from experiments.settings.config import RunConfig, run_config


def arms(*overrides: str) -> dict[str, RunConfig]:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        config = run_config(compose("config", overrides=list(overrides)))
        return arm_configs(arm_overrides(config, config.arms, list(overrides)))


def test_nothing_to_vary() -> None:
    assert list(arms()) == ["none", "das"]


def test_an_arm_for_every_combination() -> None:
    configs = arms("+vary.drafter.window=[1,4]", "+vary.budget=[fixed,classes]")
    assert list(configs) == ["none", "window_1-fixed", "window_1-classes", "window_4-fixed", "window_4-classes"]
    config = configs["window_4-classes"]
    assert (config.drafter.options["window"], config.budget["name"]) == (4, "classes")
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
