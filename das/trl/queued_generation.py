"""TRL's generation backend on engines in other processes: rollouts wait in a queue."""

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from das import ranks
from das.cluster.messages import Response
from das.cluster.weights import WeightsPart, packed
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.errors import EngineError
from das.trl.engines.cluster import ClusterEngines
from das.trl.generation import SpeculativeGeneration
from das.trl.lag import FinishedRollout, Sync
from das.weights.sharding import whole
from das.weights.weight_check import PROBE, check_together, logprob_problem, trainer_logprobs


@dataclass(frozen=True)
class Weights:
    """Copies of the weights that the trainer handed over, and the trainer's log-probs with these weights."""

    parts: list[WeightsPart]  # the policy's weights, and those of a drafter that is trained beside it
    logprobs: np.ndarray  # the trainer's log-probs of the tokens of PROBE after the first


class QueuedGeneration(SpeculativeGeneration):
    """A SpeculativeGeneration whose jobs wait in a queue. A job is a rollout, with or without new weights before it.

    Requests get the same seeds as on an engine in this process. So tokens, rewards, losses and weights are equal, bit
    for bit, with any number of engines. With several ranks, the results equal those of as many ranks with one engine
    each.

    One thread runs the jobs in order and speaks with the engines. It alone changes the state that a rollout needs, so a
    job's outcome never depends on how far the training has come. Calls of TRL's own code do not wait in the queue.
    """

    engines: ClusterEngines
    engines_of_all_ranks = True

    def __init__(self, *args: Any, start: Callable[["QueuedGeneration"], ClusterEngines], **kwargs: Any):
        """start: starts the engines for this backend. The other arguments are those of SpeculativeGeneration.

        Raises the errors of `start`.
        """
        self._start = start
        self._jobs = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollouts")
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        self.engines = self._start(self)
        self.llm: Any = self.engines

    # ---- weights ----

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engines and check that they arrived. Raises WeightSyncError."""
        self._load(self._copied(), self.step)

    def _copied(self) -> Weights:
        """Returns copies of the trainer's weights. Only the main rank talks to engines, so only its result has tensors.
        All ranks must call this, because they gather shards.
        """
        parts: list[WeightsPart] = []
        tensors = whole(self._iter_named_params())
        if ranks.is_main():
            parts += packed(tensors)
            if self.head is not None:
                parts += packed(self.head.tensors(), drafter=True)
        else:
            deque(tensors, maxlen=0)
        return Weights(parts, trainer_logprobs(self.model))

    def _load(self, weights: Weights, step: int) -> None:
        """Load weights into the engines and check that they arrived. Raises WeightSyncError."""
        start, self.sync = time.perf_counter(), Sync()
        check_together(partial(self._problem, weights), step)
        self.sync.seconds = time.perf_counter() - start

    def _problem(self, weights: Weights) -> str:
        """Load weights into the engines. Returns, in words, which tensors did not arrive, or that the engines compute
        other log-probs than the trainer; empty if all is right."""
        if lost := ranks.from_main(lambda: self._lost(weights)):
            return f"the new weights did not reach the engine: {lost}"
        loaded = time.perf_counter()
        self.sync.error = float(np.abs(self.engines.probe(PROBE) - weights.logprobs).max())
        self.sync.check_s = time.perf_counter() - loaded  # without the comparison that loading makes
        return logprob_problem(self.sync.error, self.engines.dtype)

    def _lost(self, weights: Weights) -> str:
        names = [name for part in weights.parts if not part.drafter for name, _, _ in part.tensors]
        if not names:
            return "none was loaded"
        return self.engines.load_weights(weights.parts, self.weight_sample.chosen(names))

    # ---- rollouts ----

    def submit(
        self, trainer: Any, rows: Sequence[Mapping[str, Any]], prompts: list[list[int]], step: int, new_weights: bool
    ) -> Future[FinishedRollout]:
        """Queue the rollout of `rows` for training step `step`. new_weights: load the trainer's current weights before
        it.

        The future raises the rollout's error, such as WeightSyncError.
        """
        weights = self._copied() if new_weights else None
        return self._jobs.submit(self._run, weights, trainer, rows, prompts, step, trainer.state.global_step)

    def _run(
        self, weights: Weights | None, trainer: Any, rows: Any, prompts: list[list[int]], step: int, updates: int
    ) -> FinishedRollout:
        """Run one job: load `weights` unless they are None, and roll out `rows`. updates: the number of training
        updates that the weights have seen."""
        self.announce(trainer, rows, step)
        if weights is not None:
            self._load(weights, step)
        return self._roll_out_ahead(prompts, trainer.num_generations, updates)

    def generate(self, prompts: list[Any], images: Any, num_generations: int, profiler: Any = None) -> Any:
        """See VLLMGeneration.generate. Returns prompt ids, completion ids, log-probs and their token ids, each as a
        list with one entry for each row.
        """
        if images is not None and any(image is not None for image in images):
            raise EngineError("engines in other processes get token ids only, and these prompts have images")
        with profiler or nullcontext():
            rows = [{"prompt_token_ids": prompt} for prompt in prompts]
            responses: list[Response] = self._generate_checked(rows, self._sampling_params())
        rollout = self._turns[-1].rollout if self._turns else self.last
        assert rollout is not None
        start = time.thread_time()
        with _no_collection():
            logprobs = None if self.logprobs is None else [_column(response.logprobs) for response in responses]
            token_ids = None if self.logprobs is None else [response.tokens[:, None].tolist() for response in responses]
        handed_over = rollout.handed_over(1e6 * (time.thread_time() - start) / max(1, rollout.tokens))
        if self._turns:
            self._turns[-1] = replace(self._turns[-1], rollout=handed_over)
        else:
            self.last = handed_over
        return prompts, rollout.responses, logprobs, token_ids

    def _sampling_params(self) -> Any:
        """Returns vLLM's SamplingParams, made from the arguments that TRL gives its own colocated engine."""
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        arguments = {
            "repetition_penalty": self.repetition_penalty,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": 0.0 if self.min_p is None else self.min_p,
            "max_tokens": self.max_completion_length,
            "logprobs": self.logprobs,
            **self.generation_kwargs,
        }
        if self.structured_outputs_regex is not None:
            arguments["structured_outputs"] = StructuredOutputsParams(regex=self.structured_outputs_regex)
        if arguments["logprobs"] not in (None, 0):
            raise EngineError(
                f"logprobs={arguments['logprobs']}: engines in other processes return those of sampled tokens only"
            )
        return SamplingParams(**arguments)

    # ---- calls that wait until the queue is empty ----

    def evaluate(self, request: RolloutRequest) -> Rollout:
        """See SpeculativeGeneration.evaluate. The evaluation waits until the queued rollouts are finished."""
        load = partial(self._load, self._copied(), request.step)
        return self._jobs.submit(self._evaluate, request, load).result()

    def save_history(self, path: Path) -> None:
        """Once the queue is empty, write the drafter's history."""
        self._jobs.submit(super().save_history, path).result()

    def save_state(self, folder: Path) -> None:
        """Once the queue is empty, write the state that a resumed run needs."""
        self._jobs.submit(super().save_state, folder).result()

    def close(self) -> None:
        """End the engines. Jobs that still wait are dropped."""
        self._jobs.shutdown(wait=False, cancel_futures=True)
        self.engines.stop()
        self._jobs.shutdown()
        self.engines.close()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Inside the `with` block, Python collects no garbage. The collector would look through all lists again and again
    while a list for each token is made: 3 us a token instead of 0.15 for 64 responses of 1,024 tokens.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _column(logprobs: np.ndarray | None) -> list[list[float | None]]:
    """Returns log-probs [T] in the form that TRL takes: a list for each token, with None in place of NaN."""
    assert logprobs is not None
    column: list[list[float | None]] = logprobs[:, None].tolist()
    for at in np.flatnonzero(np.isnan(logprobs)).tolist():
        column[at] = [None]
    return column
