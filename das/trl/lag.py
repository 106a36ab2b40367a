"""Asynchronous RL at a fixed lag: rollouts run ahead of the training, then wait for their training step.

The rollout of step n samples with the weights after max(0, n - lag) updates, no matter when it runs. So the lag, and
never the clock, decides what is computed. Where the engine runs only decides how much of the rollout time overlaps with
training.

Without a lag a step waits for TRL's own rollout (StepRollouts).
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.general import ranks
from das.general.arrays import load_arrays, pack_strings, save_arrays, unpack_strings
from das.general.errors import EngineError

Rows = list[Mapping[str, Any]]  # of a data set, one for each response


@dataclass
class Sync:
    """Measurements of the sync by which an engine got the weights of a rollout."""

    seconds: float = 0.0
    check_s: float = 0.0  # part of `seconds`: the weight check
    exchange_s: float = 0.0  # part of `seconds`: a rank waits for what others finished
    exchange_bytes: int = 0  # that this rank gave for it


@dataclass(frozen=True)
class FinishedRollout:
    """A rollout that waits for its training step."""

    rollout: Rollout  # its log-probs are those of the weights that sampled it
    prompts: list[list[int]]  # token ids
    weights: int  # number of updates that these weights had seen
    sync: Sync

    def answer(self, prompt_ids: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[Any]]:
        """Returns what TRL's `_generate_single_turn` returns for these prompts: token ids and log-probs of the
        responses. Raises EngineError if the rollout has other prompts."""
        if self.prompts != prompt_ids:
            raise EngineError(
                f"a step trains on other rows than rollout {self.rollout.step} has: rollouts ahead need TRL's own "
                "order of the data"
            )
        return self.rollout.responses, [each.logprobs for each in self.rollout.finished]


class StepRollouts:
    """Gives each training step its rows and their responses.

    This class is for steps that wait for TRL's own rollout of TRL's own rows. Subclasses have the rollout of a step
    before TRL asks for it.
    """

    lag = 0  # training steps between the weights that sample and the update that uses the responses
    taken: FinishedRollout | None = None  # on which the running step trains; None: TRL's own code rolls out

    def __init__(self, trainer: Any):
        """trainer: one of TRL, with a generation backend of das."""
        self.trainer = trainer

    def rows(self, drawn: Rows) -> Rows:
        """Begin a step. Returns the rows on which it trains. drawn: those that TRL has drawn for it. All ranks must
        call this method."""
        self.trainer.vllm_generation.announce(self.trainer, drawn)
        return drawn

    def begin(self) -> None:
        """Forget the rollouts of an earlier training, which no step took."""

    def wait(self) -> None:
        """Wait until no rollout runs. Raises the error of a rollout."""

    def save(self, folder: Path) -> None:
        """Write what waits for later steps into the folder of a checkpoint."""

    def resume(self, folder: Path, step: int) -> None:
        """Continue from what `save` wrote into this folder after `step`."""


STATE = "rollouts_ahead.npz"
KIND = "rollouts ahead"


class RolloutsAhead(StepRollouts):
    """Runs rollouts ahead. At the start of step n it hands new weights to the engine, submits rollout n + lag, and
    takes rollout n.

    So rollout n samples with the weights after max(0, n - lag) updates. Rows, seeds, history and the order of the
    rollouts are the same as in a training without lag. The last `lag` steps submit nothing.
    """

    def __init__(self, trainer: Any, lag: int):
        """trainer: a GRPOTrainer."""
        super().__init__(trainer)
        self.lag = lag
        self._submitted: deque[Future[FinishedRollout]] = deque()  # rollouts of the coming steps, in order
        self._coming: Iterator[Rows] | None = None  # rows of the rollouts that are not submitted yet

    def rows(self, drawn: Rows) -> Rows:
        """Submit the rollouts that are due, then wait for the rollout of this step. Raises the rollout's error."""
        trainer, step = self.trainer, self.trainer.state.global_step
        if self._coming is None:
            self._coming = self._rows_from(step)
        last = min(step + self.lag, trainer.state.max_steps - 1)
        for number in range(step + len(self._submitted), last + 1):
            self._submitted.append(trainer.vllm_generation.submit(trainer, next(self._coming), number))
        self.taken = self._submitted.popleft().result()
        assert self.taken.rollout.step == step
        return drawn

    def begin(self) -> None:
        """See StepRollouts."""
        wait(self._submitted)
        self._submitted.clear()
        self._coming = None

    def wait(self) -> None:
        """See StepRollouts."""
        for future in self._submitted:
            future.result()

    def save(self, folder: Path) -> None:
        """Write the rollouts that were submitted but not taken yet."""
        save_ahead(folder, [future.result() for future in self._submitted])

    def resume(self, folder: Path, step: int) -> None:
        """See StepRollouts."""
        ahead = load_ahead(folder)
        self._submitted = deque(map(done, ahead))
        self._coming = self._rows_from(step + len(ahead))

    def _rows_from(self, number: int) -> Iterator[Rows]:
        """Yield the rows of the data set for rollout `number`, then for each later rollout. TRL's dataloader will give
        the same rows to the steps that train on these rollouts."""
        rows = self.trainer.train_dataset
        return ([rows[i] for i in indexes] for indexes in islice(indexes_of_steps(self.trainer), number, None))


def check_lag(lag: object) -> None:
    """Raise ValueError with a one-line message unless this is a number of training steps, or None."""
    if lag is not None and (type(lag) is not int or lag < 0):
        raise ValueError(f"lag={lag}: give a whole number of training steps, such as 1")


def rollouts_of_script(trainer: Any, lag: int) -> StepRollouts:
    """Returns the rollouts of a script's trainer. With a lag it must be a GRPOTrainer, which one process trains."""
    if not lag:
        return StepRollouts(trainer)
    ahead = RolloutsAhead(trainer, lag)
    original = trainer._generate_single_turn

    def generate(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        if not trainer.model.training:
            return original(prompt_ids, *args, **kwargs)
        assert ahead.taken is not None
        return ahead.taken.answer(prompt_ids)

    trainer._generate_single_turn = generate
    return ahead


def indexes_of_steps(trainer: Any) -> Iterator[list[int]]:
    """Yields the dataset's indexes of this rank's rows of each rollout, epoch after epoch without end, as TRL's
    dataloader draws them."""
    sampler = type(trainer)._get_train_sampler(trainer)  # a new one, which draws a new order for every epoch
    sampler.repeat_count = 1  # TRL repeats the rows for each of a step's micro-batches
    rows = trainer.args.generation_batch_size
    own = rows // ranks.count()
    while True:
        indexes = iter(sampler)
        while len(taken := list(islice(indexes, rows))) == rows:
            yield taken[own * ranks.rank() :][:own]


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
            "vllm_importance_sampling_correction=true"
        )
    if problem := rollout_of_its_own(arguments):
        return problem
    if processes > 1:
        return f"rollouts ahead need one process that trains, and these are {processes}: launch one"
    return ""


def script_problem(trainer: Any) -> str:
    """Returns one line that says why the rollouts of this GRPOTrainer of TRL cannot run ahead; empty if they can.

    trainer: is being built, and lacks only its engine.
    """
    if trainer.args.vllm_mode != "colocate":
        return 'rollouts ahead need an engine beside the trainer: set vllm_mode="colocate"'
    rows = trainer.train_dataset
    if not hasattr(rows, "__getitem__") or not hasattr(rows, "__len__"):
        return "rollouts ahead need the rows of later steps, and a stream has none; give a dataset"
    if {"image", "images"} & set(getattr(rows, "column_names", None) or []):
        return "engines in other processes get token ids only, and this dataset has images"
    return ahead_problem(1, vars(trainer.args), bool(trainer.tools), trainer.accelerator.num_processes)


def rollout_of_its_own(arguments: Mapping[str, Any]) -> str:
    """Returns one line that says that training steps share a rollout; empty if each step has its own. arguments: those
    of TRL's GRPOConfig."""
    accumulated = arguments.get("gradient_accumulation_steps", 1)
    per_generation = arguments.get("steps_per_generation", accumulated) * arguments.get("num_iterations", 1)
    if per_generation == accumulated:
        return ""
    return (
        f"each step needs a rollout of its own, and here {per_generation} micro-batches share one: leave out "
        "steps_per_generation and num_iterations"
    )


def save_ahead(folder: Path, ahead: Sequence[FinishedRollout]) -> None:
    """Write rollouts that wait for their steps, for a checkpoint. Their steps must be consecutive, in order."""
    rows = []
    for done in ahead:
        rollout = done.rollout
        plain = {"step": rollout.step, "rollout_s": rollout.rollout_s, "report": rollout.report.plain()}
        plain["finished"] = [each.plain() for each in rollout.finished]
        rows.append((plain, done.prompts, done.weights, vars(done.sync)))  # JSON keeps every bit
    save_arrays(folder / STATE, {"kind": np.array(KIND), "ahead": pack_strings(rows)})


def load_ahead(folder: Path) -> list[FinishedRollout]:
    """Read what `save_ahead` wrote. Raises ValueError for a damaged file."""
    ahead = []
    for plain, prompts, weights, sync in unpack_strings(load_arrays(folder / STATE, KIND)["ahead"]):
        finished = [Finished(**each) for each in plain.pop("finished")]
        report = RolloutReport.from_plain(plain.pop("report"))
        rollout = Rollout(finished=finished, report=report, **plain)
        ahead.append(FinishedRollout(rollout, prompts, weights, Sync(**sync)))
    return ahead


def done(value: Any) -> "Future[Any]":
    """Returns a future that already has this value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future
