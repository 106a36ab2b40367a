"""Budgets decide how many draft tokens each request may use in a decode step."""

from collections.abc import Mapping
from typing import Any

from das.budget.marginal import Marginal
from das.budget.policies import BudgetPolicy, DraftWork, Fixed, LiveRequest, NoDrafts, TargetPass, Unlimited
from das.budget.toggle import Ladder, RooflineToggle
from das.general.named_class import named_class

__all__ = ["POLICIES", "BudgetPolicy", "DraftWork", "LiveRequest", "TargetPass", "checked_budget", "make_budget"]

_checked: dict[str, BudgetPolicy] = {}  # by the settings' text
DEFAULT_BUDGET: Mapping[str, Any] = {"name": "marginal"}  # used if no budget is named

POLICIES: dict[str, type[BudgetPolicy]] = {
    "none": NoDrafts,
    "fixed": Fixed,
    "unlimited": Unlimited,
    "marginal": Marginal,
    "ladder": Ladder,
    "roofline_toggle": RooflineToggle,
}


def make_budget(settings: Mapping[str, Any]) -> BudgetPolicy:
    """Build the policy that settings["name"] names (config group `budget`; default: that of DEFAULT_BUDGET). The other
    settings are its options.

    Options that are left out have the defaults of the policy's constructor. The option `over` holds the settings of
    another policy, which the named one switches on and off.

    A name "module:Class" stands for a class of the user (docs/drafters_and_budgets.md). Raises ValueError with a
    one-line message if the name is unknown or a value is impossible, and TypeError if an option is unknown or of
    another type.
    """
    policy, options = named_class("budget", settings, DEFAULT_BUDGET, POLICIES, BudgetPolicy)
    name = settings.get("name", DEFAULT_BUDGET["name"])
    if "over" in options:
        options["over"] = make_budget(options["over"])
    try:
        built = policy(**options)
    except TypeError as error:
        raise TypeError(f"budget {name}: {error}") from error
    if policy.limits is BudgetPolicy.limits or not hasattr(built, "max_draft_tokens"):
        raise ValueError(f"budget.name={name}: it needs limits and max_draft_tokens (docs/drafters_and_budgets.md)")
    return built


def checked_budget(settings: Mapping[str, Any]) -> BudgetPolicy:
    """Returns a policy with these settings to look at, which a process builds once. Raises the errors of
    make_budget."""
    text = repr(settings)
    if text not in _checked:
        _checked[text] = make_budget(settings)
    return _checked[text]
