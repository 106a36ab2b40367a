"""How many draft tokens each request may spend in a decode step."""

from das.budget.policies import BudgetPolicy, Classes, Fixed, LiveRequest, make_budget

__all__ = ["BudgetPolicy", "Classes", "Fixed", "LiveRequest", "make_budget"]
