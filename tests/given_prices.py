"""The default budget with given prices, by which drafts pay: budget=own budget.name=tests.given_prices:GivenPrices.

It reads no clock, so it drafts the same however busy this machine is.
"""

from das.budget import TargetPass
from das.budget.marginal import FIRST_PLAIN, Marginal

LIVE, DRAFTS = (1, 2, 4, 6, 8, 12, 16, 32, 64), (0, 1, 2, 4, 8, 16, 32)  # DRAFTS: tokens of each request


class GivenPrices(Marginal):
    """A token costs token_s seconds, and a pass base_s more."""

    def __init__(self, tokens: int = 32, base_s: float = 64e-6, token_s: float = 1e-6):
        super().__init__(tokens)
        for live in LIVE:
            for each in DRAFTS:
                self.prices.observe(TargetPass(live, live * each, 0, 0, base_s + token_s * live * (1 + each)))
        self._plain = FIRST_PLAIN

    def observe_pass(self, done: TargetPass) -> None:
        """Learn nothing."""
