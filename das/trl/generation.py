"""TRL's generation backend on an engine of das: seeds and problem ids for each request, checked weights, measured
rollouts. The harness's trainer and `das.speculate()` both use it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.arrays import load_arrays, save_arrays
from das.budget.schedule import LongestFirst
from das.engine.build import EngineSettings, build_engine
from das.engine.environment import nccl_variables_kept
from das.engine.rollouts.rollout import Rollout, RolloutRequest, end_turns, request_seed, roll_out, roll_out_turn
from das.errors import EngineError
from das.heads.training import OnlineHead
from das.trl.colocated import gpu_capability, random_states_kept, require_sleep_mode, tensor_parallel_group
from das.trl.conversations import Turn, joined, rows_of
from das.trl.dataset_rows import history_tick, problem_id
from das.trl.determinism import algorithms_of_the_engine
from das.trl.lag import FinishedRollout, Sync, done
from das.trl.support import invariance_problem, unsupported
from das.weights.sharding import whole
from das.weights.weight_check import WeightSample, check_together, logprob_difference, logprob_problem

STATE = "generation.npz"


class SpeculativeGeneration(VLLMGeneration):
    """Colocated vLLM with keyed verification and drafts. Call `announce` before each `generate`."""

    engines_of_all_ranks = False  # whether all ranks roll out together, on engines that belong to none of them
    head: OnlineHead | None = None  # a drafter that is trained beside the policy; its trainer sets it

    def __init__(
        self,
        *args: Any,
        engine: EngineSettings,
        history_unit: str,
        schedule: LongestFirst | None = None,
        after_rollout: Callable[[], None] = lambda: None,
        **kwargs: Any,
    ):
        """engine: how to build it. history_unit: what the drafter's window counts, "epoch" or "step". schedule: the
        order in which requests are handed to the engine; None keeps TRL's. after_rollout: called when all responses
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
        self.several_turns = False  # whether the announced rollout is over at `finish_turns` only
        self._turns: list[Turn] = []  # of the running rollout
        self.rollouts = 0  # of the training, including the one that was announced last
        self.history_tick = 0  # what the drafter's window counts up to once that rollout is over
        self.num_drafted = self.num_accepted = 0  # tokens in the training's rollouts
        self.last: Rollout | None = None
        self._counted_in = (0, False)  # step and evaluation flag that `_requests` belongs to
        self._requests = 0  # responses of that step so far, over all processes
        self._first = 0  # number of this engine's first response of the running rollout among them
        self.weight_sample = WeightSample(engine.weight_check_every)
        self.syncs = 0  # that were checked by log-probs alone (StockGeneration)
        self.evaluation_sample = WeightSample(engine.weight_check_every)  # of the syncs before evaluations
        self.sync_s = 0.0
        self.check_s = 0.0  # part of sync_s: the weight check
        self._logprobs_checked = True  # since the last sync
        self.sync_error: float | None = None  # largest |log p(engine) - log p(trainer)| after the last sync, if checked
        super().__init__(*args, **kwargs)

    def announce(self, trainer: Any, rows: Sequence[Mapping[str, Any]], step: int | None = None) -> None:
        """Note what TRL does not tell its backend: the trainer is about to generate a response for each of `rows`.

        From the trainer come the seed, the training step, whether this is an evaluation, and how far the training has
        come, which moves the drafter's window. From the rows come the problem ids. step: the one that will train on
        the responses, if it is not the trainer's own.
        """
        self.run_seed = trainer.args.seed
        self.step = trainer.state.global_step if step is None else step
        self.evaluation = step is None and not trainer.model.training
        self.several_turns, self._turns = bool(getattr(trainer, "tools", None)), []
        writes_prompts = bool(getattr(trainer, "environment_factories", None))  # from all columns of a row
        self.problems = [problem_id(row, whole_row=writes_prompts) for row in rows]
        if self.evaluation:
            return
        self.rollouts += 1
        responses = getattr(trainer, "num_generations", 1)  # of a problem; distillation asks for one
        problems = len(rows) * trainer.accelerator.num_processes // responses
        self.history_tick = history_tick(self.history_unit, self.rollouts, trainer.train_dataset, problems)

    def _init_vllm(self) -> None:
        overrides: dict[str, Any] = {}
        if self.accelerator.num_processes > 1:
            from trl.trainer.utils import ensure_master_addr_port

            ensure_master_addr_port()
            overrides["distributed_executor_backend"] = "external_launcher"
        if self.tensor_parallel_size > 1:
            overrides["tensor_parallel_size"] = self.tensor_parallel_size
            self.tp_group = tensor_parallel_group(self.tensor_parallel_size, self.accelerator.num_processes)
        if self.enable_sleep_mode:
            require_sleep_mode()
            if not self.engine.row.sleeps:
                raise EngineError(
                    f"{self.engine.method}: sleep mode forgets the weights that draft: set vllm_enable_sleep_mode=False"
                )
            overrides["enable_sleep_mode"] = True
        if problem := invariance_problem(gpu_capability(), os.environ.get("VLLM_BATCH_INVARIANT") == "1"):
            raise EngineError(problem)
        self.accelerator.wait_for_everyone()  # so the trainer's NCCL reads its variables before the engine pins them
        # The engine in this process reseeds all global generators. The trainer must not notice.
        with random_states_kept(), nccl_variables_kept() if self.tensor_parallel_size == 1 else nullcontext():
            self.llm = self._build_engine(**overrides)
        if not hasattr(self.llm.llm_engine.engine_core, "engine_core"):
            raise EngineError("VLLM_ENABLE_V1_MULTIPROCESSING=1 moves the engine away from the trainer: unset it")
        self._engine_generate = self.llm.generate
        self.llm.generate = self._generate_keyed
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
        self._llm_weights_sleeping = (
            self.enable_sleep_mode
        )  # level 2 forgets them, so TRL loads them before it rolls out
        self.accelerator.wait_for_everyone()

    def _build_engine(self, **overrides: Any) -> Any:
        return build_engine(self.engine, **overrides)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The tensors that TRL loads in a sync. The weight check takes its sample of them."""
        return self.weight_sample.watch(whole(super()._iter_named_params()))

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engine and check that they arrived.

        With sleep mode, TRL wakes the weights only, so log-probs are checked later, before the next rollout. Raises
        WeightSyncError, on all ranks, when an engine does not hold them or computes something else with them.
        """
        start = time.perf_counter()
        check_together(self._load_weights, self.step)
        self.sync_s = time.perf_counter() - start
        self.sync_error = None
        self._logprobs_checked = False
        if not self.enable_sleep_mode:
            self._check_logprobs()

    def _load_weights(self) -> str:
        """Load the weights, and say which of them did not arrive."""
        super().sync_weights()
        self.llm.collective_rpc("das_use_new_weights")
        loaded = time.perf_counter()
        problem = self.weight_sample.problem(self.llm)
        self.check_s = time.perf_counter() - loaded
        return problem or self._load_head(None if self.head is None else self.head.tensors())

    def _load_head(self, tensors: Sequence[tuple[str, torch.Tensor]] | None) -> str:
        """Load the drafter that is trained beside the policy, if there is one, and say what of it did not arrive."""
        if tensors is None:
            return ""
        for lost in self.llm.collective_rpc("das_load_head", args=(tensors,)):
            if lost:
                return f"the new weights of the drafter did not reach the engine: {lost}"
        return ""

    def _check_logprobs(self) -> None:
        """Check the log-probs of an engine that is awake, once after each sync. The ranks of an engine do it together,
        so none may begin before all have loaded their weights."""
        if self._logprobs_checked:
            return
        start = time.perf_counter()
        check_together(self._compare_logprobs, self.step)
        self._logprobs_checked = True
        took = time.perf_counter() - start
        self.sync_s, self.check_s = self.sync_s + took, self.check_s + took

    def _compare_logprobs(self) -> str:
        self.sync_error = logprob_difference(self.model, self._engine_generate, self.step)
        return logprob_problem(self.sync_error, self.llm.llm_engine.model_config.dtype)

    def _generate_keyed(self, prompts: list[Any], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """llm.generate as TRL calls it: one `sampling_params` for all prompts, and nothing about problems."""
        with algorithms_of_the_engine():
            return self._generate_checked(prompts, sampling_params)

    def _generate_checked(self, prompts: list[Any], sampling_params: Any) -> list[Any]:
        self._check_logprobs()
        turn = len(self._turns)
        rows = rows_of(prompts) if turn else range(len(prompts))
        if not turn:
            self._count_responses(len(prompts))
        seeds = [request_seed(self.run_seed, self.step, self._first + row, self.evaluation, turn) for row in rows]
        request = RolloutRequest(
            prompts,
            sampling_params,
            [self.problems[row] for row in rows] if turn else self._gathered_problems(),
            seeds=seeds,
            step=self.step,
            next_history_tick=self.history_tick,
            schedule=None if self.evaluation else self.schedule,
            evaluation=self.evaluation,
        )
        if self.several_turns:
            outputs, rollout = self._roll_out_turn(request, turn)
            self._turns.append(Turn(rows, rollout))
        else:
            outputs, rollout = self._roll_out(request)
            self._finish(rollout)
        return outputs

    def _count_responses(self, responses: int) -> None:
        """Number this engine's responses within the step. Engines have equally many, and take turns in rank order."""
        if self._counted_in != (self.step, self.evaluation):
            self._counted_in, self._requests = (self.step, self.evaluation), 0
        engine, num_engines = self._own_engine()
        self._first = self._requests + engine * responses
        self._requests += num_engines * responses  # a later rollout of the step gets other seeds

    def finish_turns(self) -> None:
        """The last turn of the announced rollout is over."""
        rollout = joined(self._turns, self._end_turns())
        self._turns = []
        self._finish(rollout)

    def _finish(self, rollout: Rollout) -> None:
        self.last = rollout
        self._count_drafts(rollout)
        self.after_rollout()

    def _roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        return roll_out_turn(self.llm, request, turn, self._engine_generate)

    def _end_turns(self) -> dict[str, Any]:
        return end_turns(self.llm, self.step, self.history_tick, self.evaluation)

    def _count_drafts(self, rollout: Rollout) -> None:
        if not self.evaluation:
            self.num_drafted += rollout.report["drafted"]
            self.num_accepted += rollout.tokens - rollout.report["passes"]

    def _own_engine(self) -> tuple[int, int]:
        """Which engine is this rank's, counted from 0, and how many there are."""
        size = self.tensor_parallel_size
        return self.accelerator.process_index // size, self.accelerator.num_processes // size

    def _gathered_problems(self) -> Sequence[str]:
        """The problem ids of all ranks that share this rank's engine, in the order in which TRL gathers prompts."""
        if self.tensor_parallel_size == 1:
            return self.problems
        of_ranks: list[Any] = [None] * self.tensor_parallel_size
        torch.distributed.all_gather_object(of_ranks, self.problems, group=self.tp_group)
        return [problem for problems in of_ranks for problem in problems]

    def _roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        return roll_out(self.llm, request, self._engine_generate)

    def save_history(self, path: Path) -> None:
        """Write the drafter's history, for `drafter.warm`."""
        self.llm.collective_rpc("das_save_history", args=(str(path),))

    @contextmanager
    def _evaluation_drafter(self) -> Iterator[None]:
        """Within this the engine drafts with a drafter that knows nothing yet and is dropped at the end."""
        self.llm.collective_rpc("das_begin_evaluation")
        try:
            yield
        finally:
            self.llm.collective_rpc("das_end_evaluation")

    @contextmanager
    def _kv_cache_awake(self) -> Iterator[None]:
        """Within this an engine that sleeps between rollouts can roll out. TRL wakes it for its own rollouts only."""
        if not self.enable_sleep_mode:
            yield
            return
        self.llm.wake_up(tags=["kv_cache"])
        try:
            yield
        finally:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True

    def submit(
        self, trainer: Any, rows: Sequence[Mapping[str, Any]], prompts: list[list[int]], step: int, new_weights: bool
    ) -> Future[FinishedRollout]:
        """Roll out `rows` for training step `step`. Here that is done at once.

        prompts: the rows' token ids. new_weights: with the trainer's weights as they are now; else with those of the
        rollout that was submitted before.
        """
        self.announce(trainer, rows, step)
        if new_weights:
            self.sync_weights()
        return done(self._roll_out_ahead(prompts, trainer.num_generations, trainer.state.global_step))

    def _roll_out_ahead(self, prompts: list[list[int]], num_generations: int, weights: int) -> FinishedRollout:
        """Roll out what was announced. weights: updates that the engine's weights have seen."""
        *_, found, _ = self.generate(prompts=prompts, images=None, num_generations=num_generations)
        logprobs = [[position[0] for position in response] for response in found]  # the sampled token's
        assert self.last is not None
        return FinishedRollout(self.last, logprobs, prompts, weights, self.last_sync())

    def last_sync(self) -> Sync:
        """How the engine got its weights."""
        return Sync(self.sync_error, self.sync_s, self.check_s)

    def close(self) -> None:
        """End what would outlive the trainer. An engine in this process does not."""

    def evaluate(self, request: RolloutRequest) -> Rollout:
        """Roll out `request` with the trainer's weights as they are now. The training will not notice.

        The engine drafts with a drafter of this evaluation alone, from siblings. The training pushes its weights again
        before its next rollout, which empties the prefix cache. Its seeds depend on no state, and random states are put
        back. Raises WeightSyncError like `sync_weights`.
        """
        return self._evaluate(request, self.sync_weights)

    def _evaluate(self, request: RolloutRequest, sync: Callable[[], None]) -> Rollout:
        kept = {name: getattr(self, name) for name in ("weight_sample", "syncs", "sync_s", "check_s", "sync_error")}
        self.weight_sample = self.evaluation_sample
        try:
            with random_states_kept(), self._evaluation_drafter():
                sync()
                with self._kv_cache_awake():
                    self._check_logprobs()
                    _, rollout = self._roll_out(request)
        finally:
            for name, value in kept.items():
                setattr(self, name, value)
        return rollout

    def save_state(self, folder: Path) -> None:
        """Write what a resumed run needs to draft as this run would have."""
        self._save_drafter(folder)
        if self.head is not None:
            self.head.save(folder)
        lengths = {} if self.schedule is None else self.schedule.lengths.state()
        state = {"kind": np.array(STATE), "rollouts": np.array(self.rollouts)}
        save_arrays(folder / STATE, {**state, **lengths})

    def _save_drafter(self, folder: Path) -> None:
        self.llm.collective_rpc("das_save_state", args=(str(folder),))

    def _load_drafter(self, folder: Path) -> None:
        self.llm.collective_rpc("das_load_state", args=(str(folder),))

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        self._load_drafter(folder)
        if self.head is not None:
            self.head.load(folder)
        arrays = load_arrays(folder / STATE, STATE)
        self.rollouts = int(arrays["rollouts"])
        if self.schedule is not None:
            self.schedule.lengths.restore(arrays)


def refuse(arguments: Mapping[str, Any]) -> None:
    """Raise EngineError, in one line, for arguments of TRL's VLLMGeneration that das does not support."""
    if problem := unsupported(arguments["model"], arguments["accelerator"]):
        raise EngineError(problem)
