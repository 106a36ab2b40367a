"""Where an arm's draft model lies, and for which policies one is made."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from composed import composed_run

from experiments.harness.config import RunConfig
from experiments.harness.engine import engine_settings
from experiments.harness.policies import draft_model_directory, policy_directory
from experiments.run.errors import UserError
from experiments.small_policy import small


def config_of(*overrides: str) -> RunConfig:
    return composed_run("arm=draft_model", *overrides)


def test_every_small_policy_with_a_draft_model_has_its_own() -> None:
    made = {draft_model_directory(config_of(*more)) for more in ((), ("data=arithmetic",), ("seed=3",))}
    assert len(made) == 2  # the seed is the run's, not the policy's
    assert all(folder.startswith("outputs/cache/policies/") for folder in made)
    assert engine_settings(config_of(), "policy").speculative == {
        "model": draft_model_directory(config_of()),
        "num_speculative_tokens": 4,
    }


def test_a_named_draft_model_is_taken_as_it_is() -> None:
    assert draft_model_directory(config_of("arm.speculative.model=folder", "policy.path=another")) == "folder"


@pytest.mark.parametrize(
    "overrides", [("policy.path=folder",), ("data=programs", "reward=code"), ("setting=agent_small",)]
)
def test_no_draft_model_is_made_for_other_policies(overrides: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="name the folder of one that has the policy's tokenizer"):
        draft_model_directory(config_of(*overrides))


@pytest.mark.parametrize(
    ("setting", "whole", "tenth"), [("maths", (80, 200, 380), (8, 20, 38)), ("agent", (100, 80), (10, 8))]
)
def test_effort_is_a_share_of_the_steps_of_each_phase(
    setting: str, whole: tuple[int, ...], tenth: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def build(policy: small.SmallPolicyConfig, cache: Path, progress: Callable[[str], None]) -> Path:
        made.append(policy)
        return cache

    monkeypatch.setattr(small, "build_small_policy", build)
    for effort in (1, 0.1):
        policy_directory(config_of("arm=none", f"setting={setting}_smoke", f"policy.effort={effort}"), print)
    steps = [
        tuple(value for name, value in asdict(policy.corpus).items() if name.endswith("_steps")) for policy in made
    ]
    assert steps == [whole, tenth]
    assert small.policy_key(made[0]) != small.policy_key(made[1])
