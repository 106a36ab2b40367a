"""TRL's generation backend on an engine in the trainer's own process. TRL loads the weights into this engine."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from das.drafter import window_of
from das.engine.environment import nccl_variables_kept
from das.errors import EngineError
from das.trl.determinism import random_states_kept
from das.trl.engines.engines import TrainersEngine
from das.trl.engines.in_process import build_in_process
from das.trl.generation import SpeculativeGeneration
from das.trl.shared_history import SharedHistory
from das.trl.support import invariance_problem
from das.weights.sharding import whole
from das.weights.weight_check import logprob_difference, logprob_problem


class ColocatedGeneration(SpeculativeGeneration):
    """A SpeculativeGeneration with one engine for each rank, or with an engine that several ranks share."""

    engines: TrainersEngine

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
            self.engines = build_in_process(self.engine, trained=True, **overrides)
        self.llm = self.engines.llm
        if not hasattr(self.llm.llm_engine.engine_core, "engine_core"):
            raise EngineError("VLLM_ENABLE_V1_MULTIPROCESSING=1 moves the engine away from the trainer: unset it")
        self.llm.generate = self._generate_keyed
        own, engines = self._own_engine()
        if engines > 1 and self.engine.row.proposes and self.engine.row.history:
            gives = self.accelerator.process_index == own * self.tensor_parallel_size
            self.shared = SharedHistory(window_of(self.engine.drafter), self.engines.add_history, gives)
        if self.enable_sleep_mode:
            self.llm.sleep(level=2)
        # Sleep of level 2 drops the weights. With this flag TRL loads them before it rolls out.
        self._llm_weights_sleeping = self.enable_sleep_mode
        self.accelerator.wait_for_everyone()

    @property
    def room(self) -> int | None:
        """See SpeculativeGeneration."""
        return int(self.llm.llm_engine.model_config.max_model_len)

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the tensors that TRL loads in a sync. The weight check takes its sample from them."""
        tensors = super()._iter_named_params()
        return self.weight_sample.watch(whole(tensors)) if self.engines.compares_tensors else tensors

    def _load_weights(self) -> str:
        """Load the weights. Returns which of them did not arrive, in words; empty if all did."""
        super(SpeculativeGeneration, self).sync_weights()  # TRL's own method
        loaded = time.perf_counter()
        problem = self.engines.take_weights(self.weight_sample)
        if self.engines.compares_tensors:
            self.sync.check_s = time.perf_counter() - loaded
        return problem or ("" if self.head is None else self.engines.load_head(self.head.tensors()))

    def _compare_logprobs(self) -> str:
        if self.weight_sample.syncs > self.engines.logprob_checks:
            return ""
        self.sync.error = logprob_difference(self.model, self.engines.generate, self.step)
        return logprob_problem(self.sync.error, self.llm.llm_engine.model_config.dtype)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Inside the `with` block, an engine that sleeps between rollouts can roll out. TRL wakes the engine only for
        TRL's own rollouts."""
        if not self.enable_sleep_mode:
            yield
            return
        self.llm.wake_up(tags=["kv_cache"])
        try:
            yield
        finally:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True


def tensor_parallel_group(size: int, num_processes: int) -> Any:
    """Returns the group of the `size` ranks that share this rank's engine. All ranks must call it, as TRL does.

    Raises EngineError if the ranks cannot be divided into such groups.
    """
    if num_processes % size:
        raise EngineError(
            f"vllm_tensor_parallel_size={size}: launch a multiple of {size} processes, not {num_processes}"
        )
    own, _ = torch.distributed.new_subgroups(size)
    return own


def require_sleep_mode() -> None:
    """Raise EngineError with a one-line message if vLLM has no sleep mode on this device."""
    from vllm.platforms import current_platform

    if not current_platform.is_sleep_mode_available():
        raise EngineError(
            f"vllm_enable_sleep_mode=True: vLLM has no sleep mode on a {current_platform.device_name}; set it to False"
        )


def gpu_capability() -> int | None:
    """Returns the compute capability of this process's GPU, such as 90; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor
