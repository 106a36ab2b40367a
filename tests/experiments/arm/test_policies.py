"""Where the small policies and their draft model lie, and which policies have one."""

import pytest
from composed import composed_run

from experiments.arm.engine import engine_settings
from experiments.arm.models import draft_model_directory, policy_directory
from experiments.policies import SHIPPED


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [
        ((), "puzzles"),
        (("data=programs", "reward=code"), "programs"),
    ],
)
def test_the_small_policy_that_fits_the_data_is_there(overrides: tuple[str, ...], kind: str) -> None:
    folder = policy_directory(composed_run("arm=none", *overrides), print)
    assert folder == str(SHIPPED / kind)
    assert (SHIPPED / kind / "model.safetensors").exists()


def test_the_draft_model_of_puzzles_is_there_unless_another_is_named() -> None:
    own = composed_run("arm=draft_model")
    assert (SHIPPED / "draft" / "model.safetensors").exists()
    assert engine_settings(own, "policy").speculative == {"model": str(SHIPPED / "draft"), "num_speculative_tokens": 4}
    named = composed_run("arm=draft_model", "arm.speculative.model=folder", "policy.path=another")
    assert draft_model_directory(named) == "folder"
