"""Every trainer of TRL that rolls out with vLLM trains to the same bits with drafts and without."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import made_policies
import pytest

from das.engine.patches import weights
from das.general.errors import WeightSyncError
from tests.trl import trl_runs


@pytest.fixture(scope="module")
def runs(repetitive_policy: str, tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By method and run: what `trl_runs.train` returns. By "lost": the error of a run whose weights never arrive."""
    folder = str(tmp_path_factory.mktemp("runs"))
    found: dict[str, Any] = {"none": {}, "das": {}}
    with trl_runs.one_engine() as speculate:
        for method, of_method in found.items():
            speculate(method)
            for name in trl_runs.RUNS:
                built = trl_runs.trainer(name, repetitive_policy, tiny_policy, folder)
                of_method[name] = trl_runs.train(built, asks=method == "das")
        with patch.object(weights, "repack_linear_layers", lambda model: None):
            lost = trl_runs.trainer("GRPO with LoRA", repetitive_policy, tiny_policy, folder)
            with pytest.raises(WeightSyncError) as error:
                lost.train()
    return {**found, "lost": str(error.value)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "run"),
    [
        ("Qwen3MoeForCausalLM", "das", "GRPO with LoRA with experts"),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in (
                ("", "self_draft", "GRPO"),  # the weights that draft are quantized anew after each of its syncs
                ("", "das", "GMPO"),
                ("Qwen3MoeForCausalLM", "das", "GRPO"),
                ("Qwen2_5_VLForConditionalGeneration", "das", "GRPO with images"),
            )
        ),
    ],
)
def test_further_trainings_have_equal_bits(
    name: str, method: str, run: str, repetitive_policy: str, tmp_path: Path
) -> None:
    """name: of a stand-in of tests/made_policies.py."""
    if name and made_policies.sees(name):
        pytest.importorskip("torchvision", reason="policies that see need torchvision, in the build of the torch here")
    policy, found = made_policies.write(name, tmp_path / "policy") if name else repetitive_policy, {}
    with trl_runs.one_engine() as speculate:
        for each in ("none", method):
            speculate(each)
            found[each] = trl_runs.train(trl_runs.trainer(run, policy, policy, str(tmp_path)))
    for what in ("responses", "losses", "weights"):
        assert found[method][what] == found["none"][what]
    assert all(norm > 0 for _, norm in found[method]["losses"])
    assert found[method]["accepted"] > 0


@pytest.mark.parametrize("name", trl_runs.RUNS)
def test_drafts_change_no_bit(runs: dict[str, Any], name: str) -> None:
    with_drafts, without = runs["das"][name], runs["none"][name]
    for what in ("responses", "losses", "weights"):
        assert with_drafts[what] == without[what]
    assert with_drafts["accepted"] > 0
    assert without["drafted"] == 0


@pytest.mark.parametrize("name", trl_runs.RUNS)
def test_what_a_callback_asks_is_no_rollout(runs: dict[str, Any], name: str) -> None:
    """It joins no history. It changes no bit either: the runs above ask with drafts only."""
    for tokens, before, after in runs["das"][name]["asked"]:
        assert [len(each) > 0 for each in tokens] == [True] * 9
        assert before == after
    (_, (first, *_), _), (_, (second, *_), _) = runs["das"][name]["asked"]
    assert second > first  # rollouts do join it


def test_the_runs_were_worth_comparing(runs: dict[str, Any]) -> None:
    """Weights move; LoRA's dropout makes other numbers of the same responses."""
    without = runs["none"]
    assert len({run["weights"] for run in without.values()}) == len(trl_runs.RUNS)
    assert all(norm > 0 for run in without.values() for _, norm in run["losses"])
    assert without["GRPO"]["responses"][0] == without["GRPO with LoRA"]["responses"][0]


def test_lora_that_never_reaches_the_engine_is_noticed(runs: dict[str, Any]) -> None:
    assert "the new weights did not reach the engine" in runs["lost"]
