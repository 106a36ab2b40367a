"""Budgets that depend on nothing but the number of live requests: none, fixed, unlimited, and vLLM's table."""

from collections.abc import Sequence

from das.budget.policies import BudgetPolicy, LiveRequest


class NoDrafts(BudgetPolicy):
    """Never drafts: shows what the drafting machinery alone costs."""

    max_draft_tokens = 1  # vLLM needs a positive bound

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [0] * len(live)


class Fixed(BudgetPolicy):
    """The same limit for every request. The drafter may propose less. Raises ValueError for fewer than 1 token."""

    def __init__(self, tokens: int = 16):
        if tokens < 1:
            raise ValueError(
                f"budget.tokens must be at least 1, got {tokens}; for no drafts use budget=none or arm=none"
            )
        self.max_draft_tokens = tokens

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.max_draft_tokens] * len(live)


class Unlimited(Fixed):
    """Takes drafts as long as the drafter proposes. vLLM still needs a bound."""

    def __init__(self, tokens: int = 64):
        super().__init__(tokens)


DEFAULT_ROWS = ((1, 4, 32), (5, 8, 16), (9, 16, 8), (17, 32, 4), (33, 64, 2), (65, 128, 0))


class BatchTable(BudgetPolicy):
    """A limit by the number of live requests: vLLM's num_speculative_tokens_per_batch_size, for any drafter.

    rows: each is (first, last, tokens). With `first` to `last` live requests, each request may have `tokens` drafted.
    The last row also holds for more live requests. Raises ValueError for rows with gaps or overlaps.
    """

    def __init__(self, rows: Sequence[Sequence[int]] = DEFAULT_ROWS):
        if not rows or any(len(row) != 3 for row in rows):
            raise ValueError(f"budget.rows must be a list of [first, last, tokens], got {rows}")
        expected = 1
        for first, last, tokens in rows:
            if first != expected or last < first or tokens < 0:
                raise ValueError(
                    f"budget.rows has [{first}, {last}, {tokens}] where [{expected}, >= {expected}, >= 0] must follow"
                )
            expected = last + 1
        self._rows = [(int(last), int(tokens)) for _, last, tokens in rows]
        self.max_draft_tokens = max(tokens for _, tokens in self._rows)
        if not self.max_draft_tokens:
            raise ValueError("budget.rows gives 0 tokens everywhere: for no drafts use budget=none or arm=none")

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        count = len(live)
        tokens = next((tokens for last, tokens in self._rows if count <= last), self._rows[-1][1])
        return [tokens] * count
