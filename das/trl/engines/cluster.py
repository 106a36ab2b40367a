"""The engines of a cluster (das/cluster), many or one beside the trainer. They belong to no rank.

Only the main rank talks to the engines. It rolls out the requests of all ranks, and hands each rank its responses.
"""

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.cluster.cluster import Cluster
from das.cluster.connection import ClusterSettings
from das.cluster.pool import EnginePool
from das.cluster.rollout_engine import WeightsPart, packed
from das.engine.checked_policies import Policy
from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.engine.settings import EngineSettings
from das.general import ranks
from das.general.errors import ClusterError, EngineError
from das.trl.engines import NewWeights, Result, SeenByTRL, TrainedHead
from das.weights.weight_check import WeightSample, problem_of, whole

# One engine beside the trainer. Nothing else rolls out, so it may be silent for longer.
BESIDE = ClusterSettings(engines=1, silent_s=600.0)


class Elsewhere:
    """What a trainer has as `llm` where engines run in processes of their own."""

    def __init__(self, max_model_len: int):
        # TRL asks for the length between two turns.
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=max_model_len))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python asks for these
            raise AttributeError(name)
        raise EngineError(
            f"llm.{name}: engines in processes of their own answer rollouts alone, and the trainer's process has "
            "none: leave out cluster= and lag=, or build an LLM of your own"
        )


class ClusterEngines:
    """A Cluster that the training ranks share. Implements das.trl.engines.Engines.

    What is submitted waits in a queue. One thread does it in order and speaks with the engines. It alone changes the
    state that a rollout needs, so an outcome never depends on how far the training has come. Calls of TRL's own code do
    not wait in the queue.
    """

    ranks_together = 1
    of_all_ranks = True
    keeps_history = True
    compares_tensors = False  # each engine compares those that `load_weights` names

    def __init__(self, settings: ClusterSettings, engine: EngineSettings, generation: VLLMGeneration):
        """Start the cluster, on the main rank. Raises EngineError, on all ranks, if it fails or TRL's arguments ask for
        something else."""
        for unwanted, why in (
            (generation.enable_sleep_mode, "have no sleep mode: set vllm_enable_sleep_mode=False"),
            (generation.tensor_parallel_size > 1, "are one process each: set vllm_tensor_parallel_size=1"),
            (generation.mode == "server", 'are started by das: set vllm_mode="colocate"'),
        ):
            if unwanted:
                raise EngineError(f"engines in processes of their own {why}")
        self.cluster: Cluster  # on the main rank
        self._responses: list[Finished] = []  # those that TRL's own code has now
        self._jobs = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollouts")
        self.policy: Policy = ranks.from_main(lambda: self._start(settings, engine))
        self.llm = Elsewhere(self.policy.room)

    def seen_by_trl(self, answer: Callable[..., list[Any]]) -> SeenByTRL:
        """See Engines."""
        return SeenByTRL(self.llm, partial(self._answered, answer))

    def _start(self, settings: ClusterSettings, engine: EngineSettings) -> Policy:
        """Start the engines. Returns what they know of their policy."""
        threads = max(1, torch.get_num_threads() // settings.engines)
        try:
            self.cluster = Cluster(EnginePool(settings, engine, threads))
        except ClusterError as error:
            raise EngineError(str(error)) from error
        return next(iter(self.cluster.engines.call_all("policy").values()))

    # ---- weights ----

    def copied(
        self, tensors: Callable[[], Iterator[tuple[str, torch.Tensor]]], head: TrainedHead | None
    ) -> list[WeightsPart]:
        """See Engines: the policy's weights, and those of a drafter that is trained beside it. Only the main rank talks
        to engines, so only its result has tensors. All ranks must call this, because they gather shards."""
        parts: list[WeightsPart] = []
        of_policy = whole(tensors())
        if ranks.is_main():
            parts += packed(of_policy)
            if head is not None:
                parts += packed(head.tensors(), drafter=True)
        else:
            deque(of_policy, maxlen=0)
        return parts

    def load_weights(self, new: NewWeights) -> str:
        """See Engines. Each engine compares a sample of the tensors with what was sent."""
        return ranks.from_main(lambda: self._lost_weights(new.copies, new.sample))

    def _lost_weights(self, parts: Sequence[WeightsPart], sample: WeightSample) -> str:
        names = [name for part in parts if not part.drafter for name in part.names]
        if not names:
            return problem_of(["none was loaded"])
        return self.cluster.engines.load_weights(list(parts), sample.chosen(names))

    # ---- rollouts ----

    def submit(self, job: Callable[[], Result]) -> "Future[Result]":
        """See Engines. The job waits in the queue."""
        return self._jobs.submit(job)

    def _answered(self, answer: Callable[..., Any], rows: Any, sampling_params: Any, use_tqdm: bool) -> list[Any]:
        """Takes the place of llm.generate. Returns outputs without log-probs: TRL's own code would make an object of
        each token."""
        if any("multi_modal_data" in row for row in rows):
            raise EngineError("engines in other processes get token ids only, and these prompts have images")
        if sampling_params.logprobs not in (None, 0):
            raise EngineError(
                f"logprobs={sampling_params.logprobs}: engines in other processes return those of sampled tokens only"
            )
        self._responses = answer(rows, sampling_params)
        return [
            SimpleNamespace(
                prompt_token_ids=row["prompt_token_ids"],
                outputs=[SimpleNamespace(token_ids=response.tokens, logprobs=None)],
            )
            for row, response in zip(rows, self._responses, strict=True)
        ]

    def completed(self, generated: Any, rollout: Rollout | None, logprobs: bool) -> tuple[Any, Rollout | None]:
        """See Engines. Adds the log-probs of the sampled tokens."""
        prompts, completions, found, token_ids = generated
        responses, self._responses = self._responses, []
        if logprobs:
            with _no_collection():
                found = [[[each] for each in response.logprobs or ()] for response in responses]
                token_ids = [[[each] for each in response.tokens] for response in responses]
        return (prompts, completions, found, token_ids), rollout

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Roll out the requests of all ranks, on the main rank. Each rank gets the responses to its own requests."""
        if request.turn is not None:  # there is one rank only
            of_turn = self.cluster.roll_out(request)
            return of_turn.finished, of_turn
        asked = ranks.gather((request.prompts, list(request.problems), list(request.seeds)))
        parts: list[Rollout] = []
        ranks.from_main(lambda: parts.extend(self._roll_out_for(request, asked)))
        rollout: Rollout = ranks.scatter(parts)
        return rollout.finished, rollout

    def _roll_out_for(
        self, request: RolloutRequest, asked: Sequence[tuple[Sequence[Any], list[str], list[int]]]
    ) -> list[Rollout]:
        """Returns the rollout of each rank. asked: prompts, problems and seeds of each rank."""
        prompts, problems, seeds = (list(chain.from_iterable(of_ranks)) for of_ranks in zip(*asked, strict=True))
        rollout = self.cluster.roll_out(replace(request, prompts=prompts, problems=problems, seeds=seeds))
        return divided(rollout, [len(prompts) for prompts, _, _ in asked])

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """See Engines. There is one rank only."""
        return self.cluster.end_turns(step, next_history_tick, evaluation)

    def save_state(self, folder: Path) -> None:
        """See Engines."""
        if ranks.is_main():
            self.cluster.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """See Engines."""
        if ranks.is_main():
            self.cluster.load_state(folder)

    def close(self) -> None:
        """End the engines. Jobs that still wait are dropped, and a rollout that runs raises an error."""
        self._jobs.shutdown(wait=False, cancel_futures=True)
        if ranks.is_main():
            self.cluster.engines.stop()
        self._jobs.shutdown()
        if ranks.is_main():
            self.cluster.close()


def divided(rollout: Rollout, shares: Sequence[int]) -> list[Rollout]:
    """Divide a rollout that was made for all ranks into one for each rank.

    shares: the number of responses that each rank asked for, in rank order. Each rank gets its responses. Times, the
    timeline and other counts, which cannot be divided, stay with the first rank.
    """
    parts = []
    for rank, share in enumerate(shares):
        start = sum(shares[:rank])
        own = slice(start, start + share)
        report = rollout.report
        if rank:
            report = RolloutReport(draft_s=report.draft_s, calibration_error=report.calibration_error)
        finished = rollout.finished[own]
        parts.append(replace(rollout, finished=finished, report=report.of_requests(finished)))
    return parts


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
