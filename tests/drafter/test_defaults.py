"""Every option of the drafter and of the budgets has one default, in the library, and configs/ documents it."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from reference import ReferenceDrafter

from das.budget import DEFAULT_BUDGET, POLICIES, make_budget
from das.drafter import DEFAULT_UNIT, DRAFTERS, HistoryDrafter, check_drafter
from das.drafter.options import DrafterOptions
from experiments.settings.groups import OF_PAPERS, made_budget

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BUDGETS = sorted(path.stem for path in (CONFIGS / "budget").glob("*.yaml") if path.stem != "own")


def read(path: str) -> dict[str, Any]:
    config = OmegaConf.to_container(OmegaConf.load(CONFIGS / path))
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


def defaults(function: Any) -> dict[str, Any]:
    """Default values of a function's parameters, by name."""
    return {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}


def as_lists(value: Any) -> Any:
    """Tuples as lists, as YAML has them."""
    return [as_lists(item) for item in value] if isinstance(value, tuple | list) else value


def test_drafter_config_holds_the_defaults() -> None:
    assert sorted(path.stem for path in (CONFIGS / "drafter").iterdir()) == [*DRAFTERS, "own", "paper"]
    documented = read("drafter/history.yaml")
    assert documented.pop("unit") == read("drafter/own.yaml")["unit"] == DEFAULT_UNIT
    assert documented.pop("name") == "history"
    options = defaults(DrafterOptions)
    assert documented == {name: options[name] for name in documented}
    assert options.keys() - documented.keys() == {"max_candidates"}  # no run has a reason to change it


def test_both_drafters_take_their_defaults_from_the_options() -> None:
    options = defaults(DrafterOptions)
    assert defaults(HistoryDrafter) == options
    assert defaults(ReferenceDrafter) == {name: value for name, value in options.items() if name != "warm"}


def test_every_budget_has_a_config() -> None:
    assert sorted([*POLICIES, *OF_PAPERS]) == BUDGETS


@pytest.mark.parametrize("name", BUDGETS)
def test_budget_config_holds_the_defaults(name: str) -> None:
    documented = read(f"budget/{name}.yaml")
    built, by_default = (make_budget(made_budget(settings)) for settings in (documented, {"name": name}))
    assert type(built) is type(by_default)
    assert documented.pop("name") == name
    options = defaults({**POLICIES, **OF_PAPERS}[name]) if documented else {}
    if name == "roofline_toggle":  # a policy of its own
        over = [vars(budget)["over"] for budget in (built, by_default)]
        assert documented.pop("over").keys() == {"name", "tokens"}
        assert options.pop("over") is None
        assert type(over[0]) is type(over[1])
        assert vars(over[0]) == vars(over[1])
    assert documented == {option: as_lists(value) for option, value in options.items()}


def test_the_default_budget_is_that_of_the_default_config() -> None:
    chosen = [group for group in read("config.yaml")["defaults"] if isinstance(group, dict) and "budget" in group]
    assert chosen == [{"budget": DEFAULT_BUDGET["name"]}]


def test_an_unknown_option_is_named_with_those_that_exist() -> None:
    with pytest.raises(TypeError, match=r"drafter: no option windw; choose from window, min_prob"):
        check_drafter({"windw": 4})
