"""A new method is one row of the table: engines, checks and the harness take it from there."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Engines, roll
from vllm import SamplingParams

from das.engine.build import EngineSettings, engine_arguments
from das.engine.methods import METHODS, Method, find_method, method_in
from das.errors import EngineError

ROOT = Path(__file__).resolve().parents[2]
TOY = Method(
    "toy",
    lambda settings: {
        "method": "custom_class",
        "model": "toy_proposer.ToyProposer",
        "num_speculative_tokens": 2,
    },
)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "toy", TOY)


@pytest.mark.usefixtures("toy")
def test_a_row_alone_makes_a_method_that_drafts_and_changes_no_token(engines: Engines, repetitive_policy: str) -> None:
    prompts, problems = [[5, 6, 5, 6, 5], [7, 8, 7, 8]], ["a", "b"]
    found = {}
    for method in ("none", "toy"):
        llm = engines.build(repetitive_policy, method=method)
        params = [SamplingParams(temperature=0.6, max_tokens=60, seed=seed, ignore_eos=True) for seed in (3, 4)]
        found[method] = roll(llm, prompts, params, problems, 1)
    assert found["toy"][0] == found["none"][0]
    assert found["toy"][2]["drafted"] > 0


@pytest.mark.usefixtures("toy")
def test_the_harness_takes_the_row() -> None:
    from experiments.settings.config import ArmConfig

    arm = ArmConfig("mine", "toy", {})
    assert arm.drafts
    assert arm.row is TOY
    assert arm.row.forced
    assert arm.row.sleeps
    with pytest.raises(EngineError, match="toy"):
        find_method("unknown")


def test_no_other_file_compares_a_method_with_a_name() -> None:
    """Everything else asks the row. vLLM's own configuration names a method of vLLM's, which is no row's."""
    named = "|".join(METHODS)
    pattern = rf"\.method (==|!=|in|not in) [(\[{{]?\"({named})\""
    command = ["git", "grep", "-hE", pattern, "--", "das", "experiments"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert [line for line in found.splitlines() if "speculative_config.method" not in line] == []


@pytest.mark.parametrize("name", [row.name for row in METHODS.values() if row.proposes])
def test_a_running_engine_tells_its_method(name: str) -> None:
    arguments: dict[str, Any] = engine_arguments(name)
    assert method_in(arguments["speculative_config"], arguments["additional_config"]["das"]) == name


def test_methods_of_vllm_tell_their_own_name() -> None:
    assert method_in(None, {}) == "none"
    assert method_in({"method": "eagle3", "model": "head"}, {}) == "eagle3"


def test_an_unknown_method_is_one_line() -> None:
    with pytest.raises(EngineError, match="unknown speculation method 'guess': choose none, das, "):
        EngineSettings("", method="guess")


def test_the_longest_draft_that_is_planned_can_be_chosen() -> None:
    def planned(**options: Any) -> int:
        arguments = engine_arguments("das", budget={"name": "fixed", "tokens": 7}, **options)
        return int(arguments["speculative_config"]["num_speculative_tokens"])

    assert (planned(), planned(speculative={"num_speculative_tokens": 3})) == (7, 3)
    assert planned(speculative={"num_speculative_tokens": 30}) == 7, "the budget never gives more"
    for wrong in (0, True, "8"):
        with pytest.raises(EngineError, match="the longest draft is a whole number, 1 or more"):
            planned(speculative={"num_speculative_tokens": wrong})
    with pytest.raises(EngineError, match="das takes num_speculative_tokens alone"):
        planned(speculative={"model": "x"})


def test_no_budget_is_built_to_read_a_number_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Front end, worker and runner each read the options, in engines with more than one process each time anew."""
    settings = {"name": "fixed", "tokens": 7}
    arguments = engine_arguments("das", budget=settings)
    monkeypatch.setattr("das.budget.make_budget", lambda settings: pytest.fail("built"))
    assert arguments["speculative_config"]["num_speculative_tokens"] == 7
    assert engine_arguments("das", budget=settings) == arguments
