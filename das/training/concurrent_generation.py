"""TRL's generation backend on an engine in a process of its own: it rolls out while the policy trains."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.engine.build import EngineError
from das.engine.loaded_weights import cached_blocks
from das.engine.rollout import Rollout, RolloutRequest
from das.training.engine_process import EngineProcess, dtype_of
from das.training.generation import SpeculativeGeneration
from das.training.lag import FinishedRollout
from das.training.weight_check import check_together, engine_logprobs, logprob_problem, trainer_logprobs


@dataclass(frozen=True)
class Weights:
    """Copies of what the trainer had when it handed its weights over."""

    policy: list[tuple[str, torch.Tensor]]
    head: list[tuple[str, torch.Tensor]] | None  # of the draft head that is trained beside the policy
    logprobs: torch.Tensor  # that the trainer gives to the tokens of the weight check's probe


class ConcurrentGeneration(SpeculativeGeneration):
    """SpeculativeGeneration whose jobs wait in a queue: each is a rollout, with new weights before it or without.

    One thread takes them in order and speaks with the engine. It alone changes the state that a rollout needs, so what
    a job does never depends on how far the training has come.
    """

    def _init_vllm(self) -> None:
        if self.enable_sleep_mode or self.accelerator.num_processes > 1:
            raise EngineError("an engine in its own process has no sleep mode, and one process trains beside it")
        llm: Any = EngineProcess(self.engine)
        self.llm = llm
        self._dtype = self.llm.call(dtype_of)
        self._engine_generate = self.llm.generate
        self.llm.generate = self._generate_keyed
        self._jobs = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollouts")

    def _generate_keyed(self, prompts: list[Any], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
        """Like SpeculativeGeneration's, but torch's switch stays: it is the whole process's, and the policy trains."""
        return self._generate_checked(prompts, sampling_params)

    def submit(
        self, trainer: Any, rows: Sequence[Mapping[str, Any]], prompts: list[list[int]], step: int, new_weights: bool
    ) -> Future[FinishedRollout]:
        """Queue the rollout of `rows` for training step `step`, before it the weights as they are now if they are new.

        The future raises what the rollout raises, such as WeightSyncError.
        """
        weights = self._copied() if new_weights else None
        return self._jobs.submit(self._run, weights, trainer, rows, prompts, step, trainer.state.global_step)

    def _run(
        self, weights: Weights | None, trainer: Any, rows: Any, prompts: list[list[int]], step: int, updates: int
    ) -> FinishedRollout:
        """updates: that the weights have seen."""
        self.announce(trainer, rows, step)
        if weights is not None:
            self._load(weights, step)
        return self._roll_out_ahead(prompts, trainer.num_generations, updates)

    def _copied(self) -> Weights:
        return Weights(
            [(name, _copy(tensor)) for name, tensor in VLLMGeneration._iter_named_params(self)],
            None if self.head is None else [(name, _copy(tensor)) for name, tensor in self.head.tensors()],
            trainer_logprobs(self.model),
        )

    def _load(self, weights: Weights, step: int) -> None:
        """Load weights into the engine and check that they arrived. Raises WeightSyncError."""
        start = perf_counter()
        self.llm.load_weights(weights.policy)
        self.llm.collective_rpc("das_use_new_weights")
        loaded = perf_counter()
        for _ in self.weight_sample.watch(weights.policy):
            pass
        problem = self.weight_sample.problem(self.llm, lambda llm: int(llm.call(cached_blocks)))
        problem = problem or self._load_head(weights.head)
        self.sync_error = float((engine_logprobs(self._engine_generate) - weights.logprobs).abs().max())
        problem = problem or logprob_problem(self.sync_error, self._dtype)
        self.check_s = perf_counter() - loaded
        self.sync_s = perf_counter() - start
        check_together(lambda: problem, step)

    def evaluate(self, request: RolloutRequest) -> Rollout:
        """Like SpeculativeGeneration.evaluate. It waits until the queued rollouts are finished."""
        load = partial(self._load, self._copied(), request.step)
        return self._jobs.submit(self._evaluate, request, load).result()

    def save_history(self, path: Path) -> None:
        """Write the drafter's history once the queue is empty."""
        self._jobs.submit(super().save_history, path).result()

    def save_state(self, folder: Path) -> None:
        """Write what a resumed run needs once the queue is empty."""
        self._jobs.submit(super().save_state, folder).result()

    def close(self) -> None:
        """End the engine's process. Jobs that still wait fail."""
        self.llm.close()
        self._jobs.shutdown()


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)
