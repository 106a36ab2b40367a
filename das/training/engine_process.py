"""An engine in a process of its own, called from this one: it rolls out while the policy trains."""

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch

from das.engine.build import EngineSettings, build_engine
from das.engine.install import install
from das.process import die_with_parent
from das.training.errors import EngineDied

Result = TypeVar("Result")
END_S = 5  # seconds that the process gets to end by itself


class EngineProcess:
    """The part of vllm.LLM that SpeculativeGeneration calls, with the LLM in a child process. One call at a time."""

    def __init__(self, settings: EngineSettings):
        """Start the process and build its engine. Raises what build_engine raises.

        The thread that calls this must live as long as the engine.
        """
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_serve, args=(theirs, settings, torch.get_num_threads()), name="engine", daemon=True
        )
        self._process.start()
        theirs.close()
        self._receive()

    def call(self, function: Callable[..., Result], *args: Any) -> Result:
        """Run function(llm, *args) in the engine's process. Raises what it raises, EngineDied if the process died."""
        try:
            self._pipe.send_bytes(pickle.dumps((function, args)))
        except (BrokenPipeError, ConnectionResetError):
            raise self._gone() from None
        result: Result = self._receive()
        return result

    def _receive(self) -> Any:
        try:
            succeeded, value = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):  # OSError: it died while it answered
            raise self._gone() from None
        if not succeeded:
            raise value
        return value

    def _gone(self) -> EngineDied:
        self._process.join(END_S)
        return EngineDied(f"the engine's process has died (exit code {self._process.exitcode}; out of memory?)")

    def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        """vllm.LLM.collective_rpc."""
        return self.call(_collective_rpc, method, args)

    def generate(self, prompts: Sequence[Any], params: Any, use_tqdm: bool = False) -> list[Any]:
        """vllm.LLM.generate."""
        return self.call(_generate, prompts, params)

    def load_weights(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Load the policy's tensors and empty the prefix cache."""
        self.call(_load_weights, tensors)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(END_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()


def dtype_of(llm: Any) -> torch.dtype:
    """The type that an engine computes in."""
    dtype: torch.dtype = llm.llm_engine.model_config.dtype
    return dtype


def _serve(pipe: Connection, settings: EngineSettings, threads: int) -> None:
    """Body of the engine's process: it runs one function after the other until the pipe is closed."""
    die_with_parent()
    llm: Any = None

    def build() -> None:
        nonlocal llm
        install(threads=threads, batch_invariant=settings.batch_invariant)
        llm = build_engine(settings)

    _answer(pipe, build)
    while llm is not None:
        try:
            function, args = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        _answer(pipe, function, llm, *args)


def _answer(pipe: Connection, function: Callable[..., Any], *args: Any) -> None:
    try:
        answer = True, function(*args)
    except Exception as error:
        answer = False, error
    pipe.send_bytes(pickle.dumps(answer))


def _collective_rpc(llm: Any, method: str, args: Sequence[Any]) -> list[Any]:
    found: list[Any] = llm.collective_rpc(method, args=tuple(args))
    return found


def _generate(llm: Any, prompts: Sequence[Any], params: Any) -> list[Any]:
    outputs: list[Any] = llm.generate(prompts, params, use_tqdm=False)
    return outputs


def _load_weights(llm: Any, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    llm.llm_engine.model_executor.driver_worker.model_runner.model.load_weights(tensors)
    llm.reset_prefix_cache()
