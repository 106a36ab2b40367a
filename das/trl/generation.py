"""TRL's generation backend on engines of das.

It gives requests their seeds and problem ids, measures rollouts, runs evaluations, and saves its state. There are three
ways by which weights and requests reach engines. Each has a file beside this one: colocated_generation.py,
queued_generation.py and server_generation.py.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.arrays import load_arrays, save_arrays
from das.budget.schedule import LongestFirst
from das.engine.build import EngineSettings
from das.engine.rollouts.enough import Begun
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed
from das.errors import EngineError
from das.trl.conversations import Turn, conversation_rows, joined
from das.trl.dataset_rows import RepeatWatch, history_tick, problem_id, require_fitting_batch
from das.trl.determinism import algorithms_of_the_engine, random_states_kept
from das.trl.engines.engines import Engines
from das.trl.lag import FinishedRollout, Sync, done
from das.trl.shared_history import SharedHistory
from das.trl.support import unsupported
from das.weights.weight_check import WeightSample, check_together

STATE = "generation.npz"


class TrainedHead(Protocol):
    """A drafter that is trained beside the policy."""

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Returns its weights, under the names that the engine loads."""

    def save(self, folder: Path) -> None:
        """Write its part of a checkpoint."""

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""


class SpeculativeGeneration(VLLMGeneration):
    """Rolls out on `engines`, with keyed verification and drafts. Call `announce` before each `generate`."""

    engines: Engines
    engines_of_all_ranks = False  # whether all ranks share the engines, and so must roll out together
    keeps_history = True  # whether checkpoints hold the drafter's history; False: a server keeps it
    shared: SharedHistory | None = None  # what ranks with engines of their own give each other
    head: TrainedHead | None = None  # a drafter that is trained beside the policy; its trainer sets it

    def __init__(
        self,
        *args: Any,
        engine: EngineSettings,
        history_unit: str,
        schedule: LongestFirst | None = None,
        after_rollout: Callable[[], None] = lambda: None,
        **kwargs: Any,
    ):
        """engine: settings of the engine. history_unit: the unit of the drafter's window, "epoch" or "step". schedule:
        the order in which requests are handed to the engine; None keeps TRL's. after_rollout: called when all responses
        are finished. args, kwargs: those of TRL's VLLMGeneration.

        Raises EngineError for arguments of TRL that das does not support (see `refuse`).
        """
        refuse(kwargs)
        self.engine = engine
        self.history_unit = history_unit
        self.schedule = schedule
        self.after_rollout = after_rollout
        self.run_seed = 0
        self.step = 0
        self.evaluation = False
        self.problems: Sequence[str] = ()
        self.begun: Begun | None = None  # if the announced rollout may put groups aside
        self.several_turns = False  # whether the announced rollout is over at `finish_turns` only
        self._turns: list[Turn] = []  # finished turns of the running rollout
        self.rollouts = 0  # number of the training's rollouts so far, including the one announced last
        self.history_tick = 0  # the tick to which the drafter's window moves once that rollout is over
        self.num_drafted = self.num_accepted = 0  # tokens in the training's rollouts
        self.last: Rollout | None = None
        self.repeats = RepeatWatch()
        self._counted_in = (0, False)  # step and evaluation flag that `_requests` belongs to
        self._requests = 0  # responses of that step so far, over all processes
        self._first = 0  # the place, among these, of this engine's first response in the running rollout
        self.weight_sample = WeightSample(engine.weight_check_every)
        self.evaluation_sample = WeightSample(engine.weight_check_every)  # for the syncs before evaluations
        self.sync = Sync()  # how the engines got their present weights
        self._logprobs_checked = True  # whether log-probs were checked with the present weights
        super().__init__(*args, **kwargs)

    def announce(
        self,
        trainer: Any,
        rows: Sequence[Mapping[str, Any]],
        step: int | None = None,
        begun: Begun | None = None,
    ) -> None:
        """Note that the trainer is about to generate a response for each of `rows`, which TRL does not tell its
        backend.

        The trainer tells the seed, the training step, whether it evaluates, and how far the training has come, which
        moves the drafter's window. The rows tell the problem ids. step: the step that will train on the responses;
        None: the trainer's current step. begun: what was put aside; None: all responses are new and are waited for.
        """
        self.run_seed = trainer.args.seed
        self.step = trainer.state.global_step if step is None else step
        self.evaluation = step is None and not trainer.model.training
        self.begun = begun
        self.several_turns, self._turns = bool(getattr(trainer, "tools", None)), []
        writes_prompts = bool(getattr(trainer, "environment_factories", None))  # from all columns of a row
        self.problems = [problem_id(row, whole_row=writes_prompts) for row in rows]
        if self.evaluation:
            return
        self.rollouts += 1
        responses = getattr(trainer, "num_generations", 1)  # responses to each problem; distillation asks for one
        own = len(rows) // responses if begun is None else begun.enough.wanted
        problems = own * trainer.accelerator.num_processes
        dataset = trainer.train_dataset
        size = len(dataset) if hasattr(dataset, "__len__") else None
        self.history_tick = history_tick(self.history_unit, self.rollouts, size, problems)

    @property
    def room(self) -> int | None:
        """The most tokens of a prompt and its response together; None if the trainer does not know it."""
        return self.engine.max_model_len

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine and check that they arrived.

        With sleep mode, TRL wakes only the weights' memory, so log-probs are checked before the next rollout. Raises
        WeightSyncError, on all ranks, if an engine lacks the weights or computes other log-probs with them.
        """
        start, self.sync = time.perf_counter(), Sync()
        if self.shared is not None:
            self.shared.exchange()
            self.sync.exchange_s, self.sync.exchange_bytes = self.shared.last.seconds, self.shared.last.bytes
        check_together(self._load_weights, self.step)
        self.sync.seconds = time.perf_counter() - start
        self._logprobs_checked = False
        if not self.enable_sleep_mode:
            self._check_logprobs()

    def _load_weights(self) -> str:
        """Load the weights. Returns which of them did not arrive, in words; empty if all did."""
        raise NotImplementedError

    def _check_logprobs(self) -> None:
        """Check the log-probs of an engine that is awake, once after each sync. Ranks that share an engine check
        together, so all of them must have loaded their weights before.
        """
        if self._logprobs_checked:
            return
        start = time.perf_counter()
        check_together(self._compare_logprobs, self.step)
        self._logprobs_checked = True
        took = time.perf_counter() - start
        self.sync.seconds, self.sync.check_s = self.sync.seconds + took, self.sync.check_s + took

    def _compare_logprobs(self) -> str:
        """Note in `sync` the difference between the engine's and the trainer's log-probs. Returns an error text if it
        is too large, else empty."""
        raise NotImplementedError

    def _generate_keyed(self, prompts: list[Any], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """Takes the place of llm.generate. TRL passes one `sampling_params` for all prompts, and no problem ids."""
        with algorithms_of_the_engine():
            return self._generate_checked(prompts, sampling_params)

    def _generate_checked(self, prompts: list[Any], sampling_params: Any) -> list[Any]:
        self._check_logprobs()
        turn = len(self._turns)
        rows = conversation_rows(prompts) if turn else range(len(prompts))
        problems = [self.problems[row] for row in rows] if turn else self._gathered_problems()
        if not turn:
            require_fitting_batch(prompts, problems, self.room, self.step)
            self._count_responses(len(prompts))
        seeds = [request_seed(self.run_seed, self.step, self._first + row, self.evaluation, turn) for row in rows]
        begun = self.begun
        request = RolloutRequest(
            prompts,
            sampling_params,
            problems,
            seeds=seeds if begun is None else begun.seeds,
            step=self.step,
            next_history_tick=self.history_tick,
            schedule=None if self.evaluation or begun is not None else self.schedule,
            evaluation=self.evaluation,
            set_aside=None if begun is None else begun.tokens,
            enough=None if begun is None else begun.enough,
        )
        if self.shared is not None and not turn and not self.evaluation:
            self.shared.prepare(problems)
        if self.several_turns:
            outputs, rollout = self.engines.roll_out_turn(request, turn)
            self._turns.append(Turn(rows, rollout))
        else:
            outputs, rollout = self.engines.roll_out(request)
        if self.shared is not None and not self.evaluation:
            self.shared.note(request, rollout)
        if not self.several_turns:
            self._finish(rollout)
        return outputs

    def _count_responses(self, responses: int) -> None:
        """Number this engine's responses within the step, so that each gets a seed of its own. All engines have equally
        many responses, and are numbered in rank order."""
        if self._counted_in != (self.step, self.evaluation):
            self._counted_in, self._requests = (self.step, self.evaluation), 0
        engine, num_engines = self._own_engine()
        self._first = self._requests + engine * responses
        self._requests += num_engines * responses  # a later rollout of the step gets other seeds

    def finish_turns(self) -> None:
        """End the announced rollout, because its last turn is over. Only for rollouts of several turns."""
        rollout = joined(self._turns, self.engines.end_turns(self.step, self.history_tick, self.evaluation))
        self._turns = []
        self._finish(rollout)

    def _finish(self, rollout: Rollout) -> None:
        self.last = rollout
        if self.shared is not None and not self.evaluation:
            self.shared.end_rollout(self.history_tick)
        self._count_drafts(rollout)
        self.after_rollout()

    def _count_drafts(self, rollout: Rollout) -> None:
        if not self.evaluation:
            self.num_drafted += rollout.report.drafted
            self.num_accepted += rollout.accepted

    def _own_engine(self) -> tuple[int, int]:
        """Returns the number of this rank's engine, counted from 0, and the number of engines."""
        size = self.tensor_parallel_size
        return self.accelerator.process_index // size, self.accelerator.num_processes // size

    def _gathered_problems(self) -> Sequence[str]:
        """Returns the problem ids of all ranks that share this rank's engine, in TRL's order of prompts."""
        if self.tensor_parallel_size == 1:
            return self.problems
        of_ranks: list[Any] = [None] * self.tensor_parallel_size
        torch.distributed.all_gather_object(of_ranks, self.problems, group=self.tp_group)
        return [problem for problems in of_ranks for problem in problems]

    def save_history(self, path: Path) -> None:
        """Write the drafter's history, a file that the option `drafter.warm` can read."""
        self.engines.save_history(path)

    def roll_out_enough(
        self, trainer: Any, rows: Sequence[Mapping[str, Any]], prompts: list[list[int]], begun: Begun, new_weights: bool
    ) -> FinishedRollout:
        """Roll out `rows` for the trainer's current step until enough groups are done. Responses that did not end have
        the finish reason PUT_ASIDE. For the other arguments see `submit`."""
        step = trainer.state.global_step
        self.announce(trainer, rows, step, begun)
        if new_weights:
            self.sync_weights()
        return self._roll_out_ahead(prompts, trainer.num_generations, step)

    def submit(
        self, trainer: Any, rows: Sequence[Mapping[str, Any]], prompts: list[list[int]], step: int, new_weights: bool
    ) -> Future[FinishedRollout]:
        """Roll out `rows` for training step `step`. In this class the rollout is finished when the method returns.

        prompts: the rows' token ids. new_weights: if true, use the trainer's current weights; else those of the rollout
        that was submitted before.
        """
        self.announce(trainer, rows, step)
        if new_weights:
            self.sync_weights()
        return done(self._roll_out_ahead(prompts, trainer.num_generations, trainer.state.global_step))

    def _roll_out_ahead(self, prompts: list[list[int]], num_generations: int, weights: int) -> FinishedRollout:
        """Roll out the dataset rows that the last call of `announce` named.

        prompts: the rows' token ids. weights: the version of the engine's weights, counted in training updates.
        """
        *_, found, _ = self.generate(prompts=prompts, images=None, num_generations=num_generations)
        logprobs = [[position[0] for position in response] for response in found]  # the sampled token's
        assert self.last is not None
        return FinishedRollout(self.last, logprobs, prompts, weights, self.sync)

    def close(self) -> None:
        """End threads and processes that would outlive the trainer."""
        self.engines.close()

    def evaluate(self, request: RolloutRequest) -> Rollout:
        """Roll out `request` with the trainer's current weights. The training's results do not change.

        The engine uses a drafter made for this evaluation, which drafts from siblings (responses to the same problem).
        The training pushes its weights anew before its next rollout, which empties the prefix cache. The training's
        seeds depend on no state, and random states are put back. Raises WeightSyncError like `sync_weights`.
        """
        return self._evaluate(request, self.sync_weights)

    def _evaluate(self, request: RolloutRequest, sync: Callable[[], None]) -> Rollout:
        kept = self.weight_sample, self.sync
        self.weight_sample = self.evaluation_sample
        try:
            with random_states_kept(), self.engines.evaluation():
                sync()
                with self._awake():
                    self._check_logprobs()
                    _, rollout = self.engines.roll_out(request)
        finally:
            self.weight_sample, self.sync = kept
        return rollout

    def _awake(self) -> AbstractContextManager[None]:
        """Inside the `with` block, engines that sleep between rollouts can roll out."""
        return nullcontext()

    def save_state(self, folder: Path) -> None:
        """Write the state that a resumed run needs to draft exactly as this run would have."""
        if self.keeps_history:
            self.engines.save_state(folder)
        if self.shared is not None:
            self.shared.save(folder)
        if self.head is not None:
            self.head.save(folder)
        lengths = {} if self.schedule is None else self.schedule.lengths.state()
        state = {"kind": np.array(STATE), "rollouts": np.array(self.rollouts)}
        save_arrays(folder / STATE, {**state, **lengths})

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        if self.keeps_history:
            self.engines.load_state(folder)
        if self.shared is not None:
            self.shared.load(folder)
        if self.head is not None:
            self.head.load(folder)
        arrays = load_arrays(folder / STATE, STATE)
        self.rollouts = int(arrays["rollouts"])
        if self.schedule is not None:
            self.schedule.lengths.restore(arrays)


def refuse(arguments: Mapping[str, Any]) -> None:
    """Raise EngineError with a one-line message if das does not support these arguments of TRL's VLLMGeneration."""
    if problem := unsupported(arguments["model"], arguments["accelerator"]):
        raise EngineError(problem)
