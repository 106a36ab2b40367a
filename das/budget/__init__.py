"""How many draft tokens each request may spend in a decode step."""

from collections.abc import Mapping
from typing import Any

from das.budget.classes import Classes
from das.budget.closed_form import ClosedForm
from das.budget.fixed import BatchTable, Fixed, NoDrafts, Unlimited
from das.budget.ladder import Ladder
from das.budget.marginal import Marginal
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.budget.toggle import RooflineToggle

__all__ = ["DEFAULT_BUDGET", "BudgetPolicy", "LiveRequest", "TargetPass", "make_budget"]

DEFAULT_BUDGET: Mapping[str, Any] = {"name": "marginal"}  # for those who name no budget

POLICIES: dict[str, type[BudgetPolicy]] = {
    "none": NoDrafts,
    "fixed": Fixed,
    "unlimited": Unlimited,
    "batch_table": BatchTable,
    "classes": Classes,
    "closed_form": ClosedForm,
    "marginal": Marginal,
    "ladder": Ladder,
    "roofline_toggle": RooflineToggle,
}


def make_budget(settings: Mapping[str, Any]) -> BudgetPolicy:
    """Build the policy named by settings["name"] (config group `budget`) from the other settings; `over` is a policy
    too, which the named one switches on and off.

    Raises ValueError, in one line, for an unknown name, an unknown setting or an impossible value.
    """
    parameters: dict[str, Any] = {key: value for key, value in settings.items() if key != "name"}
    policy = POLICIES.get(settings["name"])
    if policy is None:
        raise ValueError(f"unknown budget {settings['name']!r}: choose one of {', '.join(POLICIES)}")
    if "over" in parameters:
        parameters["over"] = make_budget(parameters["over"])
    return policy(**parameters)
