"""The protocol of the engines that a trainer rolls out on. Each other file of this folder has the engines of one
place."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.weights.agreement import Policy

if TYPE_CHECKING:
    from das.trl.generation import SpeculativeGeneration

Result = TypeVar("Result")


class SeenByTRL:
    """Stands for an engine while TRL generates a rollout: `generate` is das's, and all else is the engine's."""

    def __init__(self, llm: Any, generate: Callable[..., Any]):
        self._llm, self.generate = llm, generate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)


class Engines(Protocol):
    """One engine or several engines. They get the trainer's weights, roll out, and their drafters learn from rollouts.

    generation: the trainer's, for which the engines were built.
    """

    llm: Any  # vLLM's own LLM, or TRL's client of a server, or what says that this process has neither
    room: int  # the most tokens of a prompt and its response together
    ranks_together: int  # so many ranks ask in one request: TRL gathers their prompts
    of_all_ranks: bool  # whether all ranks share the engines, and so must roll out together
    keeps_history: bool  # whether `save_state` keeps the drafter's history; False: a server keeps it
    compares_tensors: bool  # whether `load_weights` needs a sample of the tensors that TRL loads, one by one

    @property
    def policy(self) -> Policy:
        """What the engines know of their policy."""

    def seen_by_trl(self, generation: "SpeculativeGeneration") -> Any:
        """Returns what TRL's own `generate` takes for `llm`. Its `generate` leads to `generation.answer`."""

    def copied(self, generation: "SpeculativeGeneration") -> Any:
        """Returns copies of the trainer's weights, which engines may load later; None if they take the trainer's own.
        All ranks must call it."""

    def load_weights(self, generation: "SpeculativeGeneration", copies: Any) -> str:
        """Load the weights. Returns, in words, which of them did not arrive; empty if all did."""

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """Call `job`: at once, or once all that was submitted before is done. The future has its result."""

    def roll_out(self, request: RolloutRequest, turn: int | None = None) -> tuple[list[Any], Rollout]:
        """Generate one response for each prompt. Returns the outputs in the order of prompts, and the rollout.

        turn: the number of this turn, counted from 0, of a rollout that is over at `end_turns`; None: it has one."""

    def completed(self, generation: "SpeculativeGeneration", generated: Any) -> Any:
        """Complete what TRL's own `generate` returned to the trainer: prompt ids, completion ids, log-probs and their
        token ids. Returns it."""

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """End a rollout of several turns: the drafters' windows move to `next_history_tick`. Returns a report of the
        time since the last turn."""

    def save_state(self, folder: Path) -> None:
        """Write what the drafter learned, for a checkpoint."""

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""

    def close(self) -> None:
        """End threads and processes that would outlive the trainer."""
