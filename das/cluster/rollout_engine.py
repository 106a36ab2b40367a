"""An engine that rolls out for a trainer in another process. It uses vLLM and das, but not Ray.

A thread steps vLLM. No other thread touches the engine. Requests come in and responses go out while it steps. A
response is kept until the trainer acknowledges it, so nothing is lost if an answer is lost on the way.
"""

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import torch

from das.cluster.broadcast import Layout, Meeting, TransferBroken, received
from das.cluster.messages import ClusterError, EngineRequest, Poll, Response, WeightsPart, weights_checksum
from das.cluster.weights import unpacked
from das.drafter.saved import SavedText
from das.engine.build import EngineSettings, build_engine
from das.engine.install import install
from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import own_parameters
from das.verify.admission import LIMIT_KEY
from das.weights.loaded_weights import cached_blocks

Result = TypeVar("Result")


class RolloutEngine:
    """One engine of das in this process, which rolls out for a trainer in another process."""

    def __init__(self, settings: EngineSettings, kv_cache_gib: int = 1, threads: int | None = None):
        """settings: how to build the engine. kv_cache_gib, threads: see das.install().

        Raises the errors of build_engine.
        """
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any] | None]] = queue.SimpleQueue()
        self._news = threading.Condition()  # guards the three below
        self._finished: dict[int, Response] = {}  # responses by index, kept until they are acknowledged
        self._passes = 0
        self._error: Exception | None = None  # the error that ended the thread
        self._live: dict[str, EngineRequest] = {}  # live requests by their names in vLLM
        self._internal: dict[str, str] = {}  # vLLM's internal name of each request, by its name in `_live`
        self._params: Any = None  # SamplingParams of the running rollout
        self._rollout = 0  # counts rollouts, so that names never repeat
        self._history_tick = 0  # the present tick of the drafter's window
        self._version = 0  # version of the weights; 0: those of the policy's folder

        def build() -> None:
            install(kv_cache_gib, threads, settings.exact)
            self.llm = build_engine(settings)

        threading.Thread(target=self._run, name="das-engine", daemon=True).start()
        self._do(build)

    # ---- weights ----

    def load_weights(self, version: int, checksum: str, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Compute and draft with these weights from now on. Returns, in words, which tensors did not arrive; empty if
        all did.

        version: the number that responses will carry. checksum: weights_checksum of the parts before they were sent.
        check: names of tensors of the policy; the engine's copies of these are compared with the parts. A drafter's
        tensors are all compared. No request may be live.
        """

        def load() -> str:
            if weights_checksum(parts) != checksum:
                return "they were damaged on the way (SHA-256)"
            tensors = ((name, tensor, part.drafter) for part in parts for name, tensor in unpacked(part))
            return self._load_weights(version, tensors, check)

        return self._do(load)

    def receive_weights(
        self, version: int, meeting: Meeting, expected: Sequence[Layout], check: Sequence[str]
    ) -> tuple[int, str, str]:
        """Load weights like `load_weights`, but receive them by the trainer's broadcast. Returns the version; in words,
        which tensors did not arrive; and why the transfer broke (empty if it did not). A broken transfer must be
        repeated before a request comes.
        """

        def receive() -> tuple[int, str, str]:
            try:
                return version, self._load_weights(version, received(meeting, expected, self._device()), check), ""
            except TransferBroken as error:
                return version, "", str(error)
            except ClusterError as error:
                return version, str(error), ""

        return self._do(receive)

    def _load_weights(
        self, version: int, tensors: Iterable[tuple[str, torch.Tensor, bool]], check: Sequence[str]
    ) -> str:
        """Load tensors into the engine. Returns, in words, which were lost. tensors: name, value, whether it is the
        drafter's."""
        if self._live:
            return f"{len(self._live)} requests are live"
        sample, checked, drafter = [], set(check), []
        for name, tensor, of_drafter in tensors:
            if of_drafter:
                drafter.append((name, tensor))
                continue
            self._model_load([(name, tensor)])
            if name in checked:
                sample.append((name, tensor))
        self.llm.reset_prefix_cache()
        self.llm.collective_rpc("das_use_new_weights")
        self._version = version
        for lost in self.llm.collective_rpc("das_lost_weights", args=(sample, version)):
            if lost:
                return str(lost)
        if blocks := cached_blocks(self.llm):
            return f"the prefix cache holds {blocks} blocks of older weights"
        lost = self.llm.collective_rpc("das_load_head", args=(drafter,))[0] if drafter else ""
        return f"of the drafter: {lost}" if lost else ""

    def _device(self) -> torch.device:
        from vllm.platforms import current_platform

        cpu = current_platform.is_cpu()
        return torch.device("cpu") if cpu else torch.device("cuda", torch.accelerator.current_device_index())

    def _model_load(self, tensors: list[tuple[str, Any]]) -> None:
        self.llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(tensors)

    def dtype(self) -> str:
        """Returns the name of the type in which the engine computes, such as float32."""
        return str(self.llm.llm_engine.model_config.dtype).removeprefix("torch.")

    def probe(self, tokens: Sequence[int]) -> np.ndarray:
        """Returns the engine's log-probs [T - 1] of these tokens [T] after the first one. No request may be live."""
        from vllm import SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, seed=0, detokenize=False, extra_args={LIMIT_KEY: 0})

        def scored() -> np.ndarray:
            # For log-probs of a prompt, vLLM computes ranks by a function that torch would compile, for up to a minute.
            with torch.compiler.set_stance("force_eager"):
                output = self.llm.generate([{"prompt_token_ids": list(tokens)}], params, use_tqdm=False)[0]
            found = zip(output.prompt_logprobs[1:], tokens[1:], strict=True)
            return np.array([of_place[token].logprob for of_place, token in found], np.float64)

        return self._do(scored)

    # ---- rollouts ----

    def begin(self, params: Any, history_tick: int, turn: int = 0) -> int:
        """Begin a rollout, or its turn number `turn`. Returns the number of passes since the engine was built.

        params: vLLM's SamplingParams, without seed and problem. history_tick: the present tick of the drafter's window,
        which a new engine does not know. Live requests of an earlier rollout are aborted, and its responses dropped.
        """

        def begin() -> int:
            self._params = _flat(params)
            self._abort()
            with self._news:
                self._finished.clear()
            self._rollout += 1
            self._history_tick = history_tick
            self.llm.collective_rpc("das_add_history", args=(history_tick, ()))
            self.llm.collective_rpc("das_begin_turn" if turn else "das_begin_rollout", args=(0,))
            return self._passes

        return self._do(begin)

    def poll(
        self,
        new: Sequence[EngineRequest],
        acknowledged: Sequence[int],
        waiting: int,
        timeout_s: float,
        history: Sequence[SavedText] = (),
    ) -> Poll:
        """Start `new` requests, drop acknowledged responses, and return the other responses.

        acknowledged: indices of responses. waiting: how many requests wait in the queue that engines share. history:
        responses of other engines that the new requests shall draft from. The call returns once there is a response,
        and either some request waits or none is live; after `timeout_s` at the latest. It does not return sooner,
        because an answer costs the trainer as much time as hundreds of tokens. Raises ClusterError once stepping has
        failed.
        """
        if new or history:
            self._work.put((lambda: self._start(new, history), None))
        with self._news:
            for index in acknowledged:
                self._finished.pop(index, None)
            self._news.wait_for(
                lambda: self._error or (self._finished and (waiting or not self._live)),
                timeout_s,
            )
            if self._error is not None:
                raise ClusterError(f"{type(self._error).__name__}: {' '.join(str(self._error).split())[:300]}")
            return Poll(list(self._finished.values()), len(self._live), self._passes)

    def end_turn(self) -> RolloutReport:
        """End the turn. Returns its report. Live requests are dropped, because other engines have delivered them."""
        return self._end("das_end_turn")

    def end(self, history_tick: int, judged: bool) -> RolloutReport:
        """End the rollout. Returns its report. For the arguments see DasWorker.das_end_rollout."""
        return self._end("das_end_rollout", history_tick, judged)

    def _end(self, method: str, *args: Any) -> RolloutReport:
        def end() -> RolloutReport:
            self._abort()
            return RolloutReport.from_plain(self.llm.collective_rpc(method, args=args)[0])

        return self._do(end)

    def abort(self) -> None:
        """Drop live requests, so that the process does not end during a pass."""
        if self._error is None:
            self._do(self._abort)

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """Call a method of vLLM's workers (vllm.LLM.collective_rpc) between two passes. Returns their results."""
        return list(self._do(lambda: self.llm.collective_rpc(method, args=tuple(args))))

    def begin_evaluation(self) -> None:
        """Draft with a new drafter, which has learned nothing yet, until `end_evaluation`."""
        self._do(lambda: self.llm.collective_rpc("das_begin_evaluation"))

    def end_evaluation(self) -> None:
        """End the evaluation: draft with the training's drafter again."""
        self._do(lambda: self.llm.collective_rpc("das_end_evaluation"))

    # ---- in the engine's thread ----

    def _do(self, function: Callable[[], Result]) -> Result:
        """Let the engine's thread call a function between two passes, after all functions that were given before.
        Returns the function's result, or raises its error."""
        future: Future[Result] = Future()
        self._work.put((function, future))
        return future.result()

    def _run(self) -> None:
        """Run the engine's thread: call the functions given to `_do`, and step vLLM. A function's error goes to its
        caller. Any other error ends the engine, and all later callers get it.
        """
        try:
            while True:
                while not self._live or not self._work.empty():
                    self._call(*self._work.get())
                self._step()
        except Exception as error:
            with self._news:
                self._error = error
                self._news.notify_all()
            while True:
                _, future = self._work.get()
                if future is not None:
                    future.set_exception(error)

    def _call(self, function: Callable[[], Any], future: Future[Any] | None) -> None:
        if future is None:
            function()
            return
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    def _start(self, new: Sequence[EngineRequest], history: Sequence[SavedText]) -> None:
        if history:
            self.llm.collective_rpc("das_add_history", args=(self._history_tick, history))
        for request in new:
            name = f"{self._rollout}.{request.index}"
            params = own_parameters(self._params, request.seed, request.problem)
            prompt = {"prompt_token_ids": list(request.prompt)}
            self._internal[name] = self.llm.llm_engine.add_request(name, prompt, params)
            self._live[name] = request

    def _abort(self) -> None:
        self.llm.llm_engine.abort_request(list(self._live))
        self._live.clear()
        self._internal.clear()

    def _step(self) -> None:
        stepped = self.llm.llm_engine.step()
        outputs = [output for output in stepped if output.finished and output.request_id in self._live]
        internal = [self._internal.pop(output.request_id) for output in outputs]
        costs = self.llm.collective_rpc("das_costs", args=(internal,))[0] if outputs else []
        responses = [
            self._response(self._live[output.request_id].index, output, cost)
            for output, cost in zip(outputs, costs, strict=True)
        ]
        with self._news:
            self._passes += 1
            for output, response in zip(outputs, responses, strict=True):
                del self._live[output.request_id]
                self._finished[response.index] = response
            if responses:
                self._news.notify_all()

    def _response(self, index: int, output: Any, cost: RequestCost) -> Response:
        completion = output.outputs[0]
        logprobs = completion.logprobs
        return Response(
            index=index,
            tokens=np.array(completion.token_ids, np.int32),
            logprobs=None if logprobs is None else np.array(logprobs.logprobs, np.float64),
            finish_reason=str(completion.finish_reason),
            weights=self._version,
            cost=cost,
        )


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
