"""Budget policies that look at requests: fixed, unlimited, and the paper's three length classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from das.budget.length import LengthClass, LengthModel
from das.drafter import Draft


@dataclass
class LiveRequest:
    """A running request as budgets see it. Lengths in tokens."""

    name: str
    problem: str
    max_tokens: int
    limit: int = 2**31  # most tokens of a draft that its sender allows
    apart: bool = False  # neither drafts nor is drafted from: the drafter does not know it
    stop_tokens: frozenset[int] = frozenset()
    generated: int = 0
    initial: LengthClass | None = field(default=None, compare=False)  # class at start, set by policies that use it

    def cut_at_stop(self, tokens: list[int]) -> list[int]:
        """`tokens` up to and with the first stop token: what follows it in a pass is never emitted."""
        for i, token in enumerate(tokens):
            if token in self.stop_tokens:
                return tokens[: i + 1]
        return tokens


class BudgetPolicy(Protocol):
    """Decides how many drafted tokens each request may spend in this decode step."""

    longest: int  # the most any request is ever given

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        """Draft tokens each request may have verified in the next target pass."""

    def trim(self, live: Sequence[LiveRequest], drafts: Sequence[Draft]) -> list[int]:
        """How many tokens of each draft are verified, knowing their estimated acceptance."""

    def observe_pass(self, tokens: int, seconds: float) -> None:
        """A target pass with this many tokens took this long, drafting included."""

    def end(self, request: LiveRequest) -> None:
        """A request finished with `request.generated` tokens."""

    def end_step(self) -> None:
        """A training step's rollout is over."""


class _Whole:
    """Drafts are verified as they come; passes need no watching."""

    def trim(self, live: Sequence[LiveRequest], drafts: Sequence[Draft]) -> list[int]:
        return [len(draft.tokens) for draft in drafts]

    def observe_pass(self, tokens: int, seconds: float) -> None:
        pass


class Fixed(_Whole):
    """The same limit for every request; the drafter may propose less."""

    def __init__(self, tokens: int):
        if tokens < 1:
            raise ValueError(f"budget.tokens must be at least 1, got {tokens}; for no speculation use arm=none")
        self.longest = tokens

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.longest] * len(live)

    def end(self, request: LiveRequest) -> None:
        pass

    def end_step(self) -> None:
        pass


class Classes(_Whole):
    """Long, Medium, Short (paper §2.7): a draft limit for each class; thresholds in tokens of response."""

    def __init__(self, short: int, medium: int, long: int, medium_from: int, long_from: int):
        if min(short, medium, long) < 0:
            raise ValueError(f"budgets must not be negative, got short={short}, medium={medium}, long={long}")
        if max(short, medium, long) == 0:
            raise ValueError("all three class budgets are 0: nothing would be drafted; for no speculation use arm=none")
        self.by_class = {LengthClass.SHORT: short, LengthClass.MEDIUM: medium, LengthClass.LONG: long}
        self.longest = max(self.by_class.values())
        self.lengths = LengthModel(medium=medium_from, long=long_from)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        limits = []
        for request in live:
            if request.initial is None:
                request.initial = self.lengths.initial(request.problem)
            limits.append(self.by_class[self.lengths.current(request.generated, request.initial)])
        return limits

    def end(self, request: LiveRequest) -> None:
        if request.initial is not None:
            self.lengths.observe(request.problem, request.initial, request.generated)

    def end_step(self) -> None:
        self.lengths.refit()
