"""What a budget policy is, and what it sees: requests, drafts, target passes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from das.budget.length import LengthClass
from das.drafter import Drafts


@dataclass
class LiveRequest:
    """A running request as budgets see it. Lengths in tokens."""

    name: str
    problem: str
    max_tokens: int
    prompt: int = 0
    limit: int = 2**31  # most tokens of a draft that its sender allows
    untracked: bool = False  # neither drafts nor is drafted from: the drafter does not know it
    stop_tokens: frozenset[int] = frozenset()
    generated: int = 0
    num_drafted: int = 0  # draft tokens verified so far, and how many of them were accepted
    num_accepted: int = 0
    passes: int = 0  # target passes that emitted for it
    initial: LengthClass | None = field(default=None, compare=False)  # class at start, set by policies that use it

    def cut_at_stop(self, tokens: list[int]) -> list[int]:
        """`tokens` up to and with the first stop token: what follows it in a pass is never emitted."""
        for i, token in enumerate(tokens):
            if token in self.stop_tokens:
                return tokens[: i + 1]
        return tokens


@dataclass(frozen=True)
class TargetPass:
    """One decode pass that is over. seconds: from the end of the pass before to its own, drafting included."""

    live: int  # requests in it
    num_drafted: int  # draft tokens verified in it
    num_accepted: int  # of these
    context: int  # tokens of prompt and response that its requests had before it
    seconds: float

    @property
    def tokens(self) -> int:
        """Rows of logits."""
        return self.live + self.num_drafted


class BudgetPolicy:
    """Decides how many drafted tokens each request may spend in each decode step.

    A policy overrides `limits`, and of the rest what it needs.
    """

    max_draft_tokens: int  # the most any request is ever given

    def begin_step(self, requests: int) -> None:
        """A rollout of this many requests begins; those without a slot wait."""

    def begin(self, request: LiveRequest) -> None:
        """A request of the rollout got its slot."""

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        """The longest draft worth looking for, for each request. All 0: the drafter is not asked."""
        raise NotImplementedError

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float] | None:
        """For each request the probability below which `trim` keeps no token, so that none need be looked for."""
        return None

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        """How many tokens of each draft are verified, knowing their estimated acceptance."""
        return drafts.counts.tolist()

    def observe_pass(self, done: TargetPass) -> None:
        """A target pass is over; requests have their new `generated`, `num_drafted`, `num_accepted`."""

    def predict(self, live: int, drafted: int, context: int) -> float:
        """Seconds the policy expects of such a pass; nan if it has no latency model."""
        return float("nan")

    def end(self, request: LiveRequest) -> None:
        """A request finished with `request.generated` tokens."""

    def end_step(self) -> None:
        """The rollout is over."""
