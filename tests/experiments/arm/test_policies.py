"""Where the small policies and their draft model lie, and which policies have one."""

import pytest
from composed import composed_run

from experiments.arm.engine import engine_settings
from experiments.arm.policies import draft_model_directory, policy_directory
from experiments.policies import SHIPPED
from experiments.settings.config import RunConfig


def config_of(*overrides: str) -> RunConfig:
    return composed_run("arm=draft_model", *overrides)


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ((), "puzzles"),
        (("data=math500",), "puzzles"),
        (("data=programs", "reward=code"), "programs"),
        (("setting=smoke", "data=programs", "reward=code"), "programs"),
    ],
)
def test_the_small_policy_that_fits_the_data_is_there(overrides: tuple[str, ...], kind: str) -> None:
    folder = policy_directory(composed_run("arm=none", *overrides), print)
    assert folder == str(SHIPPED / kind)
    assert (SHIPPED / kind / "model.safetensors").exists()


def test_the_draft_model_of_puzzles_is_there() -> None:
    folder = draft_model_directory(config_of())
    assert (SHIPPED / "draft" / "model.safetensors").exists()
    assert folder == str(SHIPPED / "draft")
    assert engine_settings(config_of(), "policy").speculative == {"model": folder, "num_speculative_tokens": 4}


def test_a_named_draft_model_is_taken_as_it_is() -> None:
    assert draft_model_directory(config_of("arm.speculative.model=folder", "policy.path=another")) == "folder"
