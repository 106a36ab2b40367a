"""A new method is one row of the table: engines, checks and the harness take it from there."""

from typing import Any

import pytest

from das.engine.build import engine_arguments
from das.engine.settings import METHODS, method_in
from das.general.errors import EngineError


@pytest.mark.parametrize("name", [row.name for row in METHODS.values() if row.proposes])
def test_a_running_engine_tells_its_method(name: str) -> None:
    budget = "fixed" if METHODS[name].self_drafts else "marginal"  # self-drafts come without probabilities
    arguments: dict[str, Any] = engine_arguments(name, budget=budget)
    assert method_in(arguments["speculative_config"], arguments["additional_config"]["das"]) == name


def test_methods_of_vllm_tell_their_own_name() -> None:
    assert method_in(None, {}) == "none"
    assert method_in({"method": "eagle3", "model": "head"}, {}) == "eagle3"


@pytest.mark.parametrize(
    ("method", "speculative", "words"),
    [
        ("guess", {}, "unknown speculation method 'guess': choose none, das, "),
        *(("das", {"num_speculative_tokens": n}, "draft is a whole number, 1 or more") for n in (0, True)),
        ("das", {"model": "x"}, "das takes num_speculative_tokens alone"),
        ("eagle3", {"num_speculative_tokens": 2}, "eagle3 needs a head"),
        *(("eagle3", {"model": "x", "num_speculative_tokens": n}, f"1 to 7 tokens a pass, not {n}") for n in (8, True)),
        ("draft_model", {"num_speculative_tokens": 4}, "draft model '' does not exist, .* give speculative a model"),
        ("draft_model", {"model": "/nowhere", "num_speculative_tokens": 4}, "draft model '/nowhere' does not exist"),
    ],
)
def test_impossible_settings_of_a_method_are_one_line(method: str, speculative: dict[str, Any], words: str) -> None:
    with pytest.raises(EngineError, match=words) as refused:
        engine_arguments(method, speculative=speculative)
    assert "\n" not in str(refused.value)


def test_the_longest_draft_that_is_planned_can_be_chosen() -> None:
    def planned(**options: Any) -> int:
        arguments = engine_arguments("das", budget={"name": "fixed", "tokens": 7}, **options)
        return int(arguments["speculative_config"]["num_speculative_tokens"])

    assert (planned(), planned(speculative={"num_speculative_tokens": 3})) == (7, 3)
    assert planned(speculative={"num_speculative_tokens": 30}) == 7, "the budget never gives more"
