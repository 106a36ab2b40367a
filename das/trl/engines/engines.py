"""Protocols of the engines that a trainer rolls out on. Each file beside this one has engines of one place."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.weights.weight_check import WeightSample


class Engines(Protocol):
    """One engine or several. They roll out, and remember what they learn about drafting."""

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Generate one response for each prompt. Returns what the engine says of each, in the order of prompts."""

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        """`roll_out` for one turn of a rollout that goes on, counted from 0."""

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """The last turn is over. Returns the report of what was done since."""

    def evaluation(self) -> AbstractContextManager[None]:
        """Within this a drafter that knows nothing yet drafts. It is dropped at the end."""

    def save_history(self, path: Path) -> None:
        """Write the drafter's history, for `drafter.warm`."""

    def save_state(self, folder: Path) -> None:
        """Write what the drafter learned, for a checkpoint."""

    def load_state(self, folder: Path) -> None:
        """Go on from what `save_state` wrote."""

    def close(self) -> None:
        """End what would outlive the trainer."""


class TrainersEngine(Engines, Protocol):
    """An engine in the trainer's process. TRL loads weights into its `llm`."""

    llm: Any  # vllm.LLM
    generate: Any  # vLLM's own llm.generate
    compares_tensors: bool  # whether a sample of the tensors is compared after each sync
    logprob_checks: float  # syncs whose log-probs are compared with the trainer's

    def take_weights(self, sample: WeightSample) -> str:
        """Compute with the weights that TRL has loaded, and say which of the sample did not arrive."""

    def load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """Draft with these weights, which learn beside the policy, and say which of them did not arrive."""
