"""Budgets that give every request the same limit: none, fixed, unlimited."""

from collections.abc import Sequence

from das.budget.policies import BudgetPolicy, LiveRequest, drafted_tokens


class NoDrafts(BudgetPolicy):
    """A budget that never allows drafts. Runs use it to measure the cost of the drafting code itself."""

    max_draft_tokens = 1  # vLLM needs a positive bound

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [0] * len(live)

    @property
    def rests(self) -> bool:
        return True


class Fixed(BudgetPolicy):
    """Gives every request the same limit. The drafter may propose less. Raises ValueError for fewer than 1 token."""

    def __init__(self, tokens: int = 16):
        self.max_draft_tokens = drafted_tokens(tokens)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.max_draft_tokens] * len(live)


class Unlimited(Fixed):
    """Does not limit drafts, except by the bound that vLLM needs."""

    def __init__(self, tokens: int = 64):
        super().__init__(tokens)
