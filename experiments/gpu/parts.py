"""The parts of task=check_gpu, and how they run: in processes of their own, with time limits."""

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any, NoReturn

from das.engine.environment import variables
from das.errors import reason_of
from das.process import die_with_parent
from experiments.gpu.scale import LINES, Row, Scale, Verdict
from experiments.run import processes
from experiments.run.errors import CONFIGS

# torch must ask NVML, not CUDA, whether there is a GPU: a fork of a process that called CUDA cannot use it.
ON_GPU = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
# Tiny shapes gain nothing by more threads, and lose much where a core is not free.
ON_CPU = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
SHARE = 0.4  # of a part's time that one of several processes may take
ARMS = ("stock", "stock_core", "das", "none", "ngram")  # of the part `speed`; stock_core: its core in its own process


@dataclass(frozen=True)
class Part:
    """functions: MODULE:NAME[:ARGUMENT]; each runs in a process. seconds: for all of them, on a GPU."""

    functions: tuple[str, ...]
    seconds: float


_HERE = "experiments.gpu"
PARTS = {  # the most valuable ones first; their limits fit into 560 s
    "sampler": Part((f"{_HERE}.sampler:sampler",), 25),
    "speed": Part(tuple(f"{_HERE}.speed:speed:{arm}" for arm in ARMS), 290),
    "tokens": Part((f"{_HERE}.tokens:tokens",), 60),
    "passes": Part((f"{_HERE}.passes:passes",), 60),
    "grpo": Part((f"{_HERE}.grpo:grpo",), 90),
    "memory": Part((f"{_HERE}.memory:memory",), 35),
}


def run_parts(names: Sequence[str], scale: Scale, seconds: float) -> dict[str, Row]:
    """Run parts one after the other, whatever becomes of those before. Returns for each: ok, seconds, and the lines of
    its processes. seconds: for all parts."""
    began, rows = time.perf_counter(), dict[str, Row]()
    (scale.folder / LINES).write_text("")
    with variables(scale.pick(ON_GPU, ON_CPU)):
        context = _processes(scale.gpu)
        for name in names:
            part, start = PARTS[name], time.perf_counter()
            limit = min(scale.pick(1.0, 2.0) * part.seconds, seconds - (start - began))
            ends = []
            for function in part.functions:
                left = limit - (time.perf_counter() - start)
                left = left if len(part.functions) == 1 else min(left, SHARE * limit)
                ends.append(_run(function, replace(scale, part=name), left, context))
            ok, lines = all(end["ok"] for end in ends), [end["line"] for end in ends]
            rows[name] = {"ok": ok, "seconds": time.perf_counter() - start, "lines": lines}
    return rows


def _processes(gpu: bool) -> Any:
    """Returns the context of multiprocessing for parts: forks of a process that has imported vLLM, which spares each
    10 to 20 s, or new interpreters if such a fork cannot use the GPU."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([processes.WARM, __name__])
    if gpu:
        trial = context.Process(target=_use_device)
        trial.start()
        trial.join()
        if trial.exitcode:
            return multiprocessing.get_context("spawn")
    return context


def _use_device() -> None:
    import torch

    torch.ones(1, device="cuda").add_(1)
    torch.cuda.synchronize()


def _run(function: str, scale: Scale, seconds: float, context: Any) -> Row:
    """Runs a function for at most `seconds`. Returns the line of its verdict."""
    ended = "not tried, the time is over"
    if seconds > 0:
        process = context.Process(target=_body, args=(function, scale, context.get_start_method()))
        process.start()
        try:
            process.join(seconds)
            ended = f"ended after {seconds:.0f} s" if process.exitcode is None else f"ended with {process.exitcode}"
        finally:
            with suppress(ProcessLookupError):  # the processes that it started are in its process group
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
    if not scale.noted(function=function):
        scale.note(**asdict(Verdict(False, f"{ended}: see {log_of(function)}")), function=function)
    return scale.noted(function=function)[0]


def log_of(function: str) -> str:
    """Return the name of the file that a function's process writes its output to."""
    return function.rpartition(".")[2].partition(":")[2].replace(":", "_") + ".log"


def _body(function: str, scale: Scale, how: str) -> NoReturn:
    """Body of a process: runs the function, and writes its verdict as a line. An exception also becomes a verdict. how:
    such processes start."""
    os.setsid()  # with the processes that it starts
    die_with_parent()
    scale = replace(scale, shown=os.dup(1))
    sys.stdout = sys.stderr = log = (scale.folder / log_of(function)).open("w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(CONFIGS.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    processes.START = how if scale.gpu else "fork"
    module, name, *arguments = function.split(":")
    try:
        verdict: Verdict = getattr(import_module(module), name)(scale, *arguments)
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict(False, f"{type(error).__name__}: {reason_of(error)[:300]}")
    scale.note(**asdict(verdict), function=function)
    os._exit(0)  # ends at once, without shutting down the engines
