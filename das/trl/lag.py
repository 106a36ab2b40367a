"""Asynchronous RL at a fixed lag: rollouts run ahead of the training, then wait for their training step.

The rollout of step n samples with the weights after max(0, n - lag) updates, no matter when it runs. So the lag, and
never the clock, decides what is computed. Where the engine runs only decides how much of the rollout time overlaps with
training.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from das.arrays import load_arrays, pack_strings, save_arrays, unpack_strings
from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import Rollout

STATE = "rollouts_ahead.npz"
KIND = "rollouts ahead 2"
PLAIN = ("step", "problems", "responses", "finish_reasons", "rollout_s")  # fields of Rollout that fit into JSON


@dataclass
class Sync:
    """Measurements of the sync by which an engine got the weights of a rollout."""

    error: float | None = None  # largest |log p(engine) - log p(trainer)|, if it was checked
    seconds: float = 0.0
    check_s: float = 0.0  # part of `seconds`: the weight check


@dataclass(frozen=True)
class FinishedRollout:
    """A rollout that waits for its training step."""

    rollout: Rollout
    logprobs: list[list[float | None]]  # log-probs of the sampled tokens under the weights that sampled them
    prompts: list[list[int]]  # token ids
    weights: int  # number of updates that these weights had seen
    sync: Sync

    def part(self, places: Sequence[int]) -> "FinishedRollout":
        """Returns the part that has the responses at these places. Its report is that of the whole."""
        rollout = self.rollout
        part = replace(
            rollout,
            problems=[rollout.problems[place] for place in places],
            responses=[rollout.responses[place] for place in places],
            finish_reasons=[rollout.finish_reasons[place] for place in places],
            requests=[rollout.requests[place] for place in places],
        )
        return replace(
            self,
            rollout=part,
            logprobs=[self.logprobs[place] for place in places],
            prompts=[self.prompts[place] for place in places],
        )


def indexes_of_rollouts(sampler: Any, rows: int) -> Iterator[list[int]]:
    """Yields the dataset's indexes for each rollout, epoch after epoch without end.

    sampler: TRL's sampler, which draws a new order for every epoch. rows: the number of rows of a rollout.
    """
    while True:
        indexes = iter(sampler)
        while len(taken := list(islice(indexes, rows))) == rows:
            yield taken


def ahead_problem(lag: int, arguments: Mapping[str, Any], tools: bool, processes: int) -> str:
    """Returns one line that says why a training cannot submit rollouts ahead; empty if it can.

    arguments: those of TRL's GRPOConfig. tools: whether rollouts have several turns. processes: how many train
    together.
    """
    if tools:
        return "rollouts in several turns call tools between their requests, and so cannot run ahead"
    if arguments.get("vllm_enable_sleep_mode", False):
        return "an engine that sleeps while the policy trains cannot roll out ahead: set vllm_enable_sleep_mode=false"
    if lag and not arguments.get("vllm_importance_sampling_correction", True):
        return (
            "older weights sample, so the loss needs the correction for them: set "
            "trainer.vllm_importance_sampling_correction=true"
        )
    if problem := rollout_of_its_own(arguments):
        return problem
    if processes > 1:
        return f"engine.processes={processes}: rollouts ahead need one process that trains; set engine.processes=1"
    return ""


def rollout_of_its_own(arguments: Mapping[str, Any]) -> str:
    """Returns one line that says that training steps share a rollout; empty if each step has its own. arguments: those
    of TRL's GRPOConfig."""
    accumulated = arguments.get("gradient_accumulation_steps", 1)
    per_generation = arguments.get("steps_per_generation", accumulated) * arguments.get("num_iterations", 1)
    if per_generation == accumulated:
        return ""
    return (
        f"each step needs a rollout of its own, and here {per_generation} micro-batches share one: leave out "
        "trainer.steps_per_generation and trainer.num_iterations"
    )


def save_ahead(folder: Path, ahead: Sequence[FinishedRollout]) -> None:
    """Write rollouts that wait for their steps, for a checkpoint. Their steps must be consecutive, in order."""
    rows = []
    for done in ahead:
        rollout = done.rollout
        plain = {name: getattr(rollout, name) for name in PLAIN}
        plain |= {"requests": [cost.plain() for cost in rollout.requests], "report": rollout.report.plain()}
        rows.append((plain, done.logprobs, done.prompts, done.weights, vars(done.sync)))  # JSON keeps every bit
    save_arrays(folder / STATE, {"kind": np.array(KIND), "ahead": pack_strings(rows)})


def load_ahead(folder: Path) -> list[FinishedRollout]:
    """Read what `save_ahead` wrote. Raises ValueError for a damaged file."""
    ahead = []
    for plain, logprobs, prompts, weights, sync in unpack_strings(load_arrays(folder / STATE, KIND)["ahead"]):
        requests = [RequestCost(**cost) for cost in plain.pop("requests")]
        report = RolloutReport.from_plain(plain.pop("report"))
        rollout = Rollout(requests=requests, report=report, **plain)
        ahead.append(FinishedRollout(rollout, logprobs, prompts, weights, Sync(**sync)))
    return ahead


def done(value: Any) -> "Future[Any]":
    """Returns a future that already has this value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future
