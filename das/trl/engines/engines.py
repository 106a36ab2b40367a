"""Protocols of the engines that a trainer rolls out on. Each file beside this one is one place where engines run."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from das.cluster.messages import WeightsPart
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.weights.weight_check import WeightSample


class Engines(Protocol):
    """One engine or several: they roll out, remember what they learn about drafting, and end."""

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
    generate: Any  # llm.generate as vLLM has it
    compares_tensors: bool  # whether a sample of the tensors is compared after each sync
    logprob_checks: float  # syncs whose log-probs are compared with the trainer's

    def take_weights(self, sample: WeightSample) -> str:
        """Compute with the weights that TRL has loaded, and say which of the sample did not arrive."""

    def load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """Draft with these weights, which learn beside the policy, and say which of them did not arrive."""


class OtherEngines(Engines, Protocol):
    """Engines in other processes, which get copies of the weights."""

    for_all_ranks: bool  # whether all ranks roll out together, on engines that belong to none of them
    dtype: torch.dtype  # in which they compute

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Compute with these weights from now on, and say what did not arrive. check: names of tensors to compare."""

    def stop(self) -> None:
        """Let a rollout that runs in another thread raise, so that `close` can be called."""

    def probe(self, tokens: Sequence[int]) -> np.ndarray:
        """The log-probs of all of these tokens but the first, float32."""
