"""Protocols of the engines that a trainer rolls out on. Each other file of this folder has the engines of one place."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch

from das.drafter.saved import SavedText
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.weights.weight_check import WeightSample


class Engines(Protocol):
    """One engine or several engines. They roll out, and their drafters learn from rollouts."""

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Generate one response for each prompt. Returns the outputs in the order of prompts, and the rollout."""

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        """Generate the responses of one turn of a rollout that has several turns. turn: its number, counted from 0."""

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """End a rollout of several turns: the drafters' windows move to `next_history_tick`. Returns a report of the
        time since the last turn."""

    def evaluation(self) -> AbstractContextManager[None]:
        """Inside the `with` block, the engines use a new drafter, which has learned nothing yet and is dropped at the
        end."""

    def save_history(self, path: Path) -> None:
        """Write the drafter's history, a file that the option `drafter.warm` can read."""

    def save_state(self, folder: Path) -> None:
        """Write what the drafter learned, for a checkpoint."""

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""

    def close(self) -> None:
        """End threads and processes that would outlive the trainer."""


class TrainersEngine(Engines, Protocol):
    """An engine in the trainer's process. TRL loads weights into its `llm`."""

    llm: Any  # vllm.LLM
    generate: Any  # vLLM's own llm.generate
    compares_tensors: bool  # whether a sample of the tensors is compared after each sync
    logprob_checks: float  # number of first syncs in which log-probs are compared with the trainer's

    def add_history(self, history_tick: int, texts: Sequence[SavedText]) -> None:
        """Add responses that other engines finished to the drafter's history. history_tick: the window's tick."""

    def take_weights(self, sample: WeightSample) -> str:
        """Compute with the weights that TRL has loaded. Returns, in words, which tensors of the sample did not
        arrive."""

    def load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """Load these weights of a head that is trained beside the policy. Returns, in words, which of them did not
        arrive."""
