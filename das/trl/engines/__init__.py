"""The protocol of the engines that a trainer rolls out on. Each other file of this folder has the engines of one
place."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from das.engine.checked_policies import Policy
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.trl.lag import Sync
from das.weights.weight_check import WeightSample

Result = TypeVar("Result")


class TrainedHead(Protocol):
    """A drafter that is trained beside the policy."""

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns its weights, under the names that the engine loads."""

    def save(self, folder: Path) -> None:
        """Write its part of a checkpoint."""

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""


@dataclass(frozen=True)
class NewWeights:
    """What a sync brings to engines.

    push: sends the trainer's weights to an engine by TRL's own code. copies: what `Engines.copied` returned. head: a
    drafter that is trained beside the policy; None: there is none. sample: the tensors that are compared. sync: gets
    the sync's measurements.
    """

    push: Callable[[], None]
    copies: Any
    head: TrainedHead | None
    sample: WeightSample
    sync: Sync


class SeenByTRL:
    """Stands for an engine while TRL generates a rollout: `generate` is das's, and all else is the engine's."""

    def __init__(self, llm: Any, generate: Callable[..., Any]):
        self._llm, self.generate = llm, generate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)


class Engines(Protocol):
    """One engine or several. They get the trainer's weights and roll out, and their drafters learn from rollouts."""

    llm: Any  # vLLM's own LLM, or TRL's client of a server, or what says that this process has neither
    ranks_together: int  # so many ranks ask in one request: TRL gathers their prompts
    of_all_ranks: bool  # whether all ranks share the engines, and so must roll out together
    keeps_history: bool  # whether `save_state` keeps the drafter's history; False: a server keeps it
    compares_tensors: bool  # whether `load_weights` needs a sample of the tensors that TRL loads, one by one

    @property
    def policy(self) -> Policy:
        """What the engines know of their policy."""

    def seen_by_trl(self, answer: Callable[..., list[Any]]) -> Any:
        """Returns what TRL's own `generate` takes for `llm`. Its `generate` leads to `answer`, which takes prompts and
        sampling parameters."""

    def copied(self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]], head: TrainedHead | None) -> Any:
        """Returns copies of the trainer's weights, `tensors()` and those of `head`, which engines may load later; None
        if they take the trainer's own. All ranks must call it."""

    def load_weights(self, new: NewWeights) -> str:
        """Load the weights. Returns, in words, which of them did not arrive; empty if all did."""

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """Call `job`: at once, or once all that was submitted before is done. The future has its result."""

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Generate one response for each prompt. Returns the outputs in the order of prompts, and the rollout."""

    def completed(self, generated: Any, rollout: Rollout | None, logprobs: bool) -> tuple[Any, Rollout | None]:
        """Complete what TRL's own `generate` returned to the trainer: prompt ids, completion ids, log-probs and their
        token ids. Returns it, and the rollout, completed too.

        rollout: the one that answered, or its newest turn; None on a rank that asked no engine. logprobs: whether TRL
        wants them."""

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """End a rollout of several turns: the drafters' windows move to `next_history_tick`. Returns a report of the
        time since the last turn."""

    def save_state(self, folder: Path) -> None:
        """Write what the drafter learned, for a checkpoint."""

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""

    def close(self) -> None:
        """End threads and processes that would outlive the trainer."""
