"""An engine that rolls out for a trainer in another process, as an actor of Ray. It uses vLLM and das, but not Ray.

A thread steps vLLM. No other thread touches the engine. Requests and weights come in, and responses go out, between its
passes.
"""

import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save

from das.drafter.saved import SavedText
from das.engine.build import build_engine
from das.engine.checked_policies import Policy
from das.engine.install import install
from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import RolloutRequest, own_parameters
from das.engine.settings import EngineSettings
from das.general import ranks
from das.general.errors import ClusterError
from das.weights.weight_check import problem_of, use_weights

Result = TypeVar("Result")
PART_BYTES = 256 * 2**20  # weights travel in parts of about this size


@dataclass(frozen=True)
class EngineRequest:
    """One response to be generated. index: the response's place in the rollout. prompt: token ids."""

    index: int
    prompt: Sequence[int]
    problem: str
    seed: int


@dataclass(frozen=True)
class WeightsPart:
    """Some tensors of the weights. names: theirs. data: these tensors as a safetensors file has them, uint8, which
    engines of a machine share."""

    names: list[str]
    data: np.ndarray
    drafter: bool = False  # True: weights of the drafter that is trained in the run; False: of the policy


def packed(named_tensors: Iterable[tuple[str, torch.Tensor]], drafter: bool = False) -> Iterator[WeightsPart]:
    """Yields copies of the tensors, in parts of about PART_BYTES.

    drafter: whether these tensors belong to the drafter that is trained in the run.
    """
    held: dict[str, torch.Tensor] = {}
    for name, tensor in named_tensors:
        held[name] = tensor.detach().to("cpu", copy=True).contiguous()
        if sum(each.nbytes for each in held.values()) >= PART_BYTES:
            yield WeightsPart(list(held), np.frombuffer(save(held), np.uint8), drafter)
            held = {}
    if held:
        yield WeightsPart(list(held), np.frombuffer(save(held), np.uint8), drafter)


def requests_of(rollout: RolloutRequest) -> list[EngineRequest]:
    """Returns the requests of a rollout, in the order of its prompts."""
    prompts = [prompt["prompt_token_ids"] for prompt in rollout.prompts]
    return [
        EngineRequest(index, list(prompt), problem, seed)
        for index, (prompt, problem, seed) in enumerate(zip(prompts, rollout.problems, rollout.seeds, strict=True))
    ]


class RolloutEngine:
    """One engine of das in this process, which rolls out for a trainer in another process. One method is called after
    the other."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="das-engine")
        self._pass: Future[None]  # the last pass that was asked for; each asks for the next one
        self._finished: deque[Finished] = deque()  # responses that the trainer has not got yet
        self._live: dict[str, EngineRequest] = {}  # live requests by their names in vLLM, their indices
        self._params: Any = None  # SamplingParams of the running rollout
        self._has_begun = False  # whether there was a rollout
        self._history_tick = 0  # the present tick of the drafter's window

    def start(self, settings: EngineSettings, threads: int = 1) -> int:
        """Build the engine; call this first. settings: how. threads: of this process. Returns the process's id.

        Raises the errors of build_engine.
        """
        for name in ranks.LAUNCHER:
            os.environ.pop(name, None)
        # If a process is killed while it compiles, an empty library stays behind, which later engines would load.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.gettempdir()}/das-inductor-{os.getpid()}"

        def build() -> None:
            torch.set_num_threads(threads)
            install(settings.exact)
            self.llm = build_engine(settings)

        self._do(build)
        return os.getpid()

    # ---- weights ----

    def load_weights(self, version: int, check: Sequence[str], *parts: WeightsPart) -> str:
        """Compute and draft with these weights from now on. Returns, in words, which tensors did not arrive; empty if
        all did.

        version: number of these weights. check: names of tensors of the policy; the engine's copies of these are
        compared with the parts. A drafter's tensors are all compared. No request may be live. Each part is an argument
        of its own, so that Ray replaces the part's reference by the part.
        """

        def load() -> str:
            sample, checked, drafter = [], set(check), []
            model = self.llm.llm_engine.model_executor.driver_worker.model_runner.model
            for part in parts:
                for name, tensor in load_tensors(part.data.tobytes()).items():
                    if part.drafter:
                        drafter.append((name, tensor))
                        continue
                    model.load_weights([(name, tensor)])
                    if name in checked:
                        sample.append((name, tensor))
            self.llm.reset_prefix_cache()
            if (problem := use_weights(self.llm, sample, version)) or not drafter:
                return problem
            (lost,) = self.llm.collective_rpc("das_load_head", args=(drafter,))
            return problem_of([lost and f"of the drafter: {lost}"])

        return self._do(load)

    def policy(self) -> Policy:
        """Returns what the engine knows of its policy."""
        return Policy(*self.llm.collective_rpc("das_policy")[0])

    # ---- rollouts ----

    def begin(self, params: Any, history_tick: int, turn: int = 0, evaluation: bool = False) -> None:
        """Begin a rollout, or its turn number `turn`.

        params: vLLM's SamplingParams, without seed and problem. history_tick: the present tick of the drafter's window,
        which a new engine does not know. evaluation: see DasWorker.das_begin_rollout. Live requests of an earlier
        rollout are aborted, and its responses dropped.
        """

        def begin() -> None:
            self._params = _flat(params)
            self._abort()
            self._finished.clear()
            goes_on = turn and self._has_begun  # a new engine may join amid a rollout of several turns
            self._has_begun = True
            self._history_tick = history_tick
            self.llm.collective_rpc("das_add_history", args=(history_tick, ()))
            if goes_on:
                self.llm.collective_rpc("das_begin_turn", args=(0,))
            else:
                self.llm.collective_rpc("das_begin_rollout", args=(0, evaluation))

        self._do(begin)

    def poll(
        self, new: Sequence[EngineRequest], waiting: int, timeout_s: float, history: Sequence[SavedText] = ()
    ) -> list[Finished]:
        """Start `new` requests. Returns the responses that have finished since the last poll.

        waiting: how many requests wait in the queue that engines share. history: responses of other engines that the
        new requests shall draft from. The call returns once there is a response, and either some request waits or none
        is live; with the pass that runs after `timeout_s` at the latest. It does not return sooner, because an answer
        costs the trainer as much time as hundreds of tokens. Raises the error of a pass.
        """
        end = time.monotonic() + timeout_s
        if new:
            self._do(lambda: self._start(new, history))
        while self._live and not (self._finished and waiting) and time.monotonic() < end:
            self._pass.result()
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def end_turn(self) -> RolloutReport:
        """End the turn. Returns its report. Live requests are dropped, because other engines have delivered them."""
        return self._end("das_end_turn")

    def end(self, history_tick: int) -> RolloutReport:
        """End the rollout. Returns its report. history_tick: see DasWorker.das_end_rollout."""
        return self._end("das_end_rollout", history_tick)

    def _end(self, method: str, *args: Any) -> RolloutReport:
        def end() -> RolloutReport:
            self._abort()
            return RolloutReport.from_plain(self.llm.collective_rpc(method, args=args)[0])

        return self._do(end)

    def saved_state(self) -> dict[str, bytes]:
        """Returns what the drafter has learned, as the files of a checkpoint by their names."""
        with tempfile.TemporaryDirectory() as folder:
            self._do(lambda: self.llm.collective_rpc("das_save_state", args=(folder,)))
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def load_state(self, files: Mapping[str, bytes]) -> None:
        """Continue from what `saved_state` returned, of this or another engine."""
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            self._do(lambda: self.llm.collective_rpc("das_load_state", args=(folder,)))

    # ---- in the engine's thread ----

    def _do(self, function: Callable[[], Result]) -> Result:
        """Let the engine's thread call a function between two passes, after all functions that were given before.
        Returns the function's result, or raises its error."""
        return self._thread.submit(function).result()

    def _start(self, new: Sequence[EngineRequest], history: Sequence[SavedText]) -> None:
        if history:
            self.llm.collective_rpc("das_add_history", args=(self._history_tick, history))
        idle = not self._live
        for request in new:
            name = str(request.index)
            params = own_parameters(self._params, request.seed, request.problem)
            prompt = {"prompt_token_ids": list(request.prompt)}
            self.llm.llm_engine.add_request(name, prompt, params)
            self._live[name] = request
        if idle:
            self._pass = self._thread.submit(self._step)

    def _abort(self) -> None:
        self.llm.llm_engine.abort_request(list(self._live))
        self._live.clear()

    def _step(self) -> None:
        """Run a pass, and ask for the next one if requests are live."""
        if not self._live:
            return  # they were aborted since
        stepped = self.llm.llm_engine.step()
        outputs = [output for output in stepped if output.finished and output.request_id in self._live]
        names = [output.request_id for output in outputs]
        finished = self.llm.collective_rpc("das_finished", args=(names,))[0] if outputs else []
        for name, output, known in zip(names, outputs, finished, strict=True):
            completion, problem = output.outputs[0], self._live.pop(name).problem
            self._finished.append(replace(known.answered(problem, completion), logprobs=_logprobs(completion)))
        if self._live:
            self._pass = self._thread.submit(self._step)


def _logprobs(completion: Any) -> list[float | None] | None:
    """Returns the log-probs of the sampled tokens, with None in place of NaN, as TRL has them."""
    if completion.logprobs is None:
        return None
    return [None if found != found else found for found in completion.logprobs.logprobs]


def _flat(params: Any) -> Any:
    """Returns a copy of vLLM's SamplingParams that asks for a single output when the response is complete, with
    log-probs in plain lists. Raises ClusterError if `params` ask for log-probs of other tokens than the sampled ones.
    """
    from vllm.sampling_params import RequestOutputKind

    if params.logprobs not in (None, 0):
        raise ClusterError(f"logprobs={params.logprobs}: engines of a cluster return those of sampled tokens; use 0")
    own = params.clone()
    own.flat_logprobs, own.output_kind = True, RequestOutputKind.FINAL_ONLY
    return own
