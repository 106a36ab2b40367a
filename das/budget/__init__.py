"""How many draft tokens each request may spend in a decode step."""

from collections.abc import Mapping
from typing import Any

from das.budget.marginal import Marginal
from das.budget.policies import BudgetPolicy, Classes, Fixed, LiveRequest

__all__ = ["BudgetPolicy", "Classes", "Fixed", "LiveRequest", "Marginal", "make_budget"]


def make_budget(settings: Mapping[str, Any]) -> BudgetPolicy:
    """Build the policy named by settings["name"] (config group `budget`) from the other settings.

    Raises ValueError, in one line, for an unknown name or an impossible value.
    """
    parameters = {key: value for key, value in settings.items() if key != "name"}
    match settings["name"]:
        case "fixed" | "unlimited":
            return Fixed(**parameters)
        case "classes":
            return Classes(**parameters)
        case "marginal":
            return Marginal(**parameters)
        case other:
            raise ValueError(f"unknown budget {other!r}: choose fixed, unlimited, classes or marginal")
