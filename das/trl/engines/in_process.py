"""An engine in the trainer's process, for each rank or for ranks that share it. TRL's own code loads the weights into
it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from das.drafter.saved import SavedText
from das.engine.checked_policies import Policy
from das.engine.patches.front_end import learn_from_rollouts_alone
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest, end_turns, roll_out
from das.engine.settings import EngineSettings
from das.general import ranks
from das.general.errors import EngineError
from das.trl.determinism import algorithms_of_the_engine, random_states_kept
from das.trl.engines import NewWeights, Result, SeenByTRL, TrainedHead
from das.trl.lag import done
from das.trl.shared_history import SharedHistory
from das.trl.support import invariance_problem
from das.weights.weight_check import WeightSample, problem_of, use_weights

if TYPE_CHECKING:
    from trl.generation.vllm_generation import VLLMGeneration  # it takes seconds


class DasEngine:
    """An engine of das in the trainer's process. Implements das.trl.engines.Engines."""

    ranks_together = 1
    of_all_ranks = False
    keeps_history = True
    compares_tensors = True

    def __init__(self, llm: Any):
        """llm: vLLM's LLM."""
        self.llm = llm

    def seen_by_trl(self, answer: Callable[..., list[Any]]) -> SeenByTRL:
        """See Engines."""

        def generate(prompts: list[Any], sampling_params: Any, use_tqdm: bool = False) -> list[Any]:
            with algorithms_of_the_engine():
                return answer(prompts, sampling_params)

        return SeenByTRL(self.llm, generate)

    @cached_property
    def policy(self) -> Policy:
        """See Engines."""
        return Policy(*self.llm.collective_rpc("das_policy")[0])

    # ---- weights ----

    def copied(self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]], head: TrainedHead | None) -> None:
        """See Engines. The engine loads the weights before the training goes on."""

    def load_weights(self, new: NewWeights) -> str:
        """See Engines."""
        new.push()
        loaded = time.perf_counter()
        problem = self.take_weights(new.sample)
        new.sync.check_s = time.perf_counter() - loaded
        return problem or ("" if new.head is None else self._load_head(new.head.tensors()))

    def take_weights(self, sample: WeightSample) -> str:
        """Compute with the weights that TRL has loaded. Returns, in words, which tensors of the sample did not
        arrive."""
        tensors = sample.take()
        return use_weights(self.llm, tensors, sample.syncs)

    def _load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        lost = self.llm.collective_rpc("das_load_head", args=(tensors,))
        return problem_of(each and f"of the drafter: {each}" for each in lost)

    # ---- rollouts ----

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """See Engines. The job is done when the method returns, and its error is raised here."""
        return done(job())

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines."""
        return roll_out(self.llm, request)

    def completed(self, generated: Any, rollout: Rollout | None, logprobs: bool) -> tuple[Any, Rollout | None]:
        """See Engines. Nothing is missing."""
        return generated, rollout

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """See Engines."""
        return end_turns(self.llm, step, next_history_tick)

    def add_history(self, history_tick: int, texts: Sequence[SavedText]) -> None:
        """Add responses that other engines finished to the drafter's history. history_tick: the window's tick."""
        self._tell("das_add_history", history_tick, texts)

    def save_state(self, folder: Path) -> None:
        """See Engines."""
        self._tell("das_save_state", str(folder))

    def load_state(self, folder: Path) -> None:
        """See Engines."""
        self._tell("das_load_state", str(folder))

    def close(self) -> None:
        """Do nothing: the engine ends with the trainer's process."""

    def _tell(self, method: str, *args: Any) -> None:
        """Call a method of DasWorker, which a stock engine has not."""
        self.llm.collective_rpc(method, args=args)


class SharingEngine(DasEngine):
    """An engine of one of several ranks, which give each other what they finished (das/trl/shared_history.py)."""

    def __init__(self, llm: Any, gives: bool):
        """See DasEngine, and SharedHistory for `gives`. All ranks must call it."""
        super().__init__(llm)
        self._shared = SharedHistory(self.add_history, ranks.gather_beside(), gives)

    def load_weights(self, new: NewWeights) -> str:
        """See Engines."""
        new.sync.exchange_s, new.sync.exchange_bytes = self._shared.take()
        return super().load_weights(new)

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """See Engines. Evaluations neither learn from other ranks nor teach them."""
        if request.evaluation:
            return super().roll_out(request)
        if not request.turn:
            self._shared.prepare(request.problems)
        outputs, rollout = super().roll_out(request)
        self._shared.note(request, rollout)
        if request.turn is None:
            self._shared.end_rollout(request.next_history_tick, rollout.report.oldest_tick)
        return outputs, rollout

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """See Engines."""
        report = super().end_turns(step, next_history_tick, evaluation)
        if not evaluation:
            self._shared.end_rollout(next_history_tick, report.oldest_tick)
        return report

    def save_state(self, folder: Path) -> None:
        """See Engines."""
        super().save_state(folder)
        self._shared.save(folder)

    def load_state(self, folder: Path) -> None:
        """See Engines."""
        super().load_state(folder)
        self._shared.load(folder)

    def close(self) -> None:
        """See Engines."""
        self._shared.close()


def start_in_process(
    generation: "VLLMGeneration", settings: EngineSettings, build: Callable[..., DasEngine]
) -> DasEngine:
    """Build this rank's engine, and put what TRL's own code needs into `generation`. All ranks must call it. build:
    takes further arguments of vllm.LLM. Raises EngineError if the engine cannot be built in the trainer's process."""
    from vllm.platforms import current_platform

    accelerator, size = generation.accelerator, generation.tensor_parallel_size
    overrides: dict[str, Any] = {}
    if accelerator.num_processes > 1:
        from trl.trainer.utils import ensure_master_addr_port

        ensure_master_addr_port()
        overrides["distributed_executor_backend"] = "external_launcher"
    if size > 1:
        overrides["tensor_parallel_size"] = size
        generation.tp_group = tensor_parallel_group(size, accelerator.num_processes)
    if generation.enable_sleep_mode:
        if not settings.row.sleeps:
            raise EngineError(
                f"{settings.method}: sleep mode forgets the weights that draft: set vllm_enable_sleep_mode=False"
            )
        overrides["enable_sleep_mode"] = True
    capability = current_platform.get_device_capability()
    is_invariant = os.environ.get("VLLM_BATCH_INVARIANT") == "1"
    if problem := invariance_problem(None if capability is None else capability.to_int(), is_invariant):
        raise EngineError(problem)
    accelerator.wait_for_everyone()  # so the trainer's NCCL reads its variables before the engine pins them
    # The engine in this process reseeds all global generators. The trainer must not notice.
    with random_states_kept(), nccl_variables_kept() if size == 1 else nullcontext():
        engine = build(**overrides)
    llm = engine.llm
    if accelerator.num_processes > size and settings.row.proposes and settings.row.history:
        first = accelerator.process_index % size == 0  # of the ranks that share this engine
        engine = SharingEngine(llm, gives=first)
    engine.ranks_together = size
    if settings.row.keyed:
        learn_from_rollouts_alone(llm)
    if generation.enable_sleep_mode:
        llm.sleep(level=2)
    # Sleep of level 2 drops the weights. With this flag TRL loads them before it rolls out.
    generation._llm_weights_sleeping = generation.enable_sleep_mode
    accelerator.wait_for_everyone()
    return engine


@contextmanager
def nccl_variables_kept() -> Iterator[None]:
    """After the `with` block, restore NCCL's environment variables.

    An engine with batch-invariant kernels pins NCCL to one channel, so that sums have one order. A trainer in the same
    process would be pinned too, though its sums need not match the engine's.
    """
    before = {name: value for name, value in os.environ.items() if name.startswith("NCCL_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("NCCL_") and name not in before]:
            del os.environ[name]
        os.environ.update(before)


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
