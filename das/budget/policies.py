"""The interface of budget policies, and the data they receive: requests, drafts, target passes.

The three that give every request the same limit are here, too: none, fixed, unlimited.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from das.drafter import Drafts


@dataclass(eq=False)
class LiveRequest:
    """A running request, as a budget sees it. Lengths are in tokens.

    `count_emitted` is the only place where accepted tokens are counted for budgets.
    """

    name: str
    problem: str
    max_tokens: int  # the longest response it may get
    prompt: int = 0  # length of its prompt
    limit: int = 2**31  # the longest draft that the caller allows, in tokens
    untracked: bool = False  # True: the drafter does not know it, so it gets no drafts and siblings do not see its text
    kept: bool = True  # whether it joins the history; False: of an evaluation
    stop_tokens: frozenset[int] = frozenset()
    stopped: bool = False  # whether it has emitted one of them
    generated: int = 0  # number of response tokens so far
    num_drafted: int = 0  # number of draft tokens verified so far
    num_accepted: int = 0  # number of these that were accepted
    allowed: int = 0  # the longest draft that the budget allowed in the last round

    def cut_at_stop(self, tokens: list[int]) -> list[int]:
        """Returns `tokens` up to and including the first stop token, and notes it. Tokens after a stop token are never
        emitted."""
        for i, token in enumerate(tokens):
            if token in self.stop_tokens:
                self.stopped = True
                return tokens[: i + 1]
        return tokens


def count_emitted(
    requests: Sequence[LiveRequest], tokens: Sequence[Sequence[int]], drafted: Sequence[int], num_passes: int = 1
) -> int:
    """Count what a pass emitted for each of these requests, or passes alike without drafts: each emits one token more
    than it accepts. Returns how many drafted tokens were accepted. tokens: that each emitted. drafted: how many it
    verified."""
    all_accepted = 0
    for request, own, num_drafted in zip(requests, tokens, drafted, strict=True):
        num_tokens = len(own)
        passes = 1 if num_passes == 1 else min(num_passes, num_tokens)
        request.generated += num_tokens
        request.num_drafted += num_drafted
        request.num_accepted += num_tokens - passes
        all_accepted += num_tokens - passes
    return all_accepted


@dataclass(frozen=True)
class DraftWork:
    """The work of a draft model in one round of drafts."""

    passes: Sequence[tuple[int, float]] = ()  # (rows, seconds) of each draft pass
    requantize_s: float = 0.0  # seconds spent on quantizing the policy's weights


@dataclass(frozen=True)
class TargetPass:
    """One finished decode pass of the policy (the target model)."""

    live: int  # number of its requests
    num_drafted: int  # number of draft tokens that it verified
    num_accepted: int  # number of these that were accepted
    context: int  # number of prompt and response tokens that its requests had before it
    seconds: float  # from the end of the previous pass to the end of this one, with drafting, without `draft_passes`
    draft_passes: Sequence[tuple[int, float]] = ()  # (rows, seconds) of the draft model's passes before it


def drafted_tokens(tokens: int) -> int:
    """Returns a budget's option `tokens`, the most draft tokens of a request. Raises ValueError for fewer than 1, and
    for a fraction."""
    if tokens < 1 or tokens % 1:
        raise ValueError(
            f"budget.tokens must be a whole number, at least 1, got {tokens}; for no drafts use budget=none or arm=none"
        )
    return tokens


class BudgetPolicy:
    """Decides how many drafted tokens each request may use in each decode step.

    A policy must override `limits`. It may override the other methods.
    """

    max_draft_tokens: int  # the most draft tokens that any request can ever get
    reads_probabilities: bool = False  # whether `trim` looks at the probabilities of drafted tokens

    def begin_step(self, requests: int) -> None:
        """Note that a rollout of this many requests begins. Requests without a slot wait."""

    def begin(self, request: LiveRequest) -> None:
        """Note that a request of the rollout got its slot and starts to decode."""

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        """Returns the longest draft to ask for, for each live request. If all are 0, the drafter is not called."""
        raise NotImplementedError

    @property
    def rests(self) -> bool:
        """True if the next call of `limits` will return 0 for every request, whatever they emit until then. The next
        pass may then begin before the tokens of the one before are known, and `limits` is called with no requests."""
        return False

    def floors(self, live: Sequence[LiveRequest]) -> Sequence[float] | None:
        """Returns a probability for each request; None: no such limits. `trim` keeps no token that is less probable, so
        drafts may end there."""
        return None

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        """Returns how many tokens of each draft to verify. The drafts come with an estimated probability of each token,
        given that those before it are right."""
        return drafts.counts.tolist()

    def observe_pass(self, done: TargetPass) -> None:
        """Note a finished target pass. `generated`, `num_drafted` and `num_accepted` of its requests include it."""

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        """Returns the predicted seconds of a pass of `live` requests; nan if the policy cannot predict. context: see
        TargetPass."""
        return float("nan")

    def trace(self) -> dict[str, list[float]]:
        """Returns decisions for the rollout's timeline: lists with one number per call of `limits` since the last
        `trace`. The names of the lists begin with pass_.
        """
        return {}

    def end(self, request: LiveRequest) -> None:
        """Note that a request finished with `request.generated` tokens."""

    def end_step(self) -> None:
        """Note that the rollout is over."""


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
