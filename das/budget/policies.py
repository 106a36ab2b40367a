"""The interface of budget policies, and what they see: requests, drafts, target passes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from das.budget.length import LengthClass
from das.drafter import Drafts


@dataclass
class LiveRequest:
    """A running request as budgets see it. Lengths are in tokens."""

    name: str
    problem: str
    max_tokens: int  # the longest response it may get
    prompt: int = 0  # length of its prompt
    limit: int = 2**31  # the longest draft that its sender allows
    untracked: bool = False  # the drafter does not know it: it gets no drafts, and siblings do not draft from it
    stop_tokens: frozenset[int] = frozenset()
    generated: int = 0  # tokens of response so far
    num_drafted: int = 0  # draft tokens verified so far
    num_accepted: int = 0  # how many of them were accepted
    passes: int = 0  # target passes that emitted tokens for it
    initial: LengthClass | None = field(default=None, compare=False)  # class at start, set by policies that use it

    def cut_at_stop(self, tokens: list[int]) -> list[int]:
        """`tokens` up to and including the first stop token. Tokens of a pass behind a stop token are never emitted."""
        for i, token in enumerate(tokens):
            if token in self.stop_tokens:
                return tokens[: i + 1]
        return tokens


@dataclass(frozen=True)
class TargetPass:
    """One finished decode pass."""

    live: int  # requests in it
    num_drafted: int  # draft tokens verified in it
    num_accepted: int  # how many of them were accepted
    context: int  # tokens of prompt and response that its requests had before it
    seconds: float  # from the end of the pass before it to its own end, drafting included, but not `draft_passes`
    branches: int = 0  # of its drafts, beside each draft's trunk (das/drafter/draft.py)
    draft_passes: Sequence[tuple[int, float]] = ()  # rows and seconds of the passes of a model that drafted for it

    @property
    def tokens(self) -> int:
        """Tokens that the pass computed: its rows of logits."""
        return self.live + self.num_drafted


class BudgetPolicy:
    """Decides how many drafted tokens each request may spend in each decode step.

    A policy must override `limits`. It may override the other methods.
    """

    max_draft_tokens: int  # the most that any request can ever get

    def begin_step(self, requests: int) -> None:
        """A rollout of this many requests begins. Requests without a slot wait."""

    def begin(self, request: LiveRequest) -> None:
        """A request of the rollout got its slot."""

    def waiting(self, requests: int) -> None:
        """So many requests of the rollout wait for a slot, here or in a queue that several engines share."""

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        """The longest draft to ask the drafter for, for each request. If all are 0, the drafter is not asked."""
        raise NotImplementedError

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float] | None:
        """The probability below which `trim` keeps no token, for each request; the drafter need not go below it."""
        return None

    def branch_floor(self) -> float:
        """The probability below which no branch of a draft is worth its copies."""
        return 0.0

    def worth(self) -> float:
        """Seconds that one more emitted token saves; nan if the policy does not know."""
        return float("nan")

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        """How many tokens of each draft will be verified, decided by their estimated probabilities."""
        return drafts.counts.tolist()

    def observe_pass(self, done: TargetPass) -> None:
        """A target pass is over. `generated`, `num_drafted` and `num_accepted` of the requests include it."""

    def predict(self, live: int, num_drafted: int, context: int, branches: int = 0) -> float:
        """Seconds that the policy expects of such a pass; nan if it has no latency model."""
        return float("nan")

    def trace(self) -> dict[str, list[float]]:
        """What a rollout's timeline says of the decisions, handed out once: lists with a number for each call of
        `limits` since the rollout began or since the last call of this. Their names begin with pass_.
        """
        return {}

    def end(self, request: LiveRequest) -> None:
        """A request finished with `request.generated` tokens."""

    def end_step(self) -> None:
        """The rollout is over."""
