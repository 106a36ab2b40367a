"""The parts of task=check_gpu, and how they run: in processes of their own, with time limits."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from das.engine.environment import variables
from das.general.errors import reason_of
from das.general.process import die_with_parent
from experiments.gpu.scale import LINES, Row, Scale, Verdict
from experiments.run import processes

# torch must ask NVML, not CUDA, whether there is a GPU: a fork of a process that called CUDA cannot use it.
ON_GPU = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
# Tiny shapes gain nothing by more threads, and lose much where a core is not free.
ON_CPU = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
SHARE = 0.4  # of a part's time that one of several processes may take
ARMS = ("stock", "stock_core", "das", "none", "ngram")  # of the part `speed`; stock_core: its core in its own process


@dataclass(frozen=True)
class Part:
    """A part is a function, in the module of its name here, or in `module`. seconds: for all its processes, on a GPU.
    arms: the function's argument in each of its processes."""

    seconds: float
    arms: tuple[str, ...] = ()
    module: str | None = None


PARTS = {  # the most valuable ones first; their limits fit into 560 s
    "sampler": Part(25),
    "speed": Part(290, ARMS),
    "tokens": Part(60),
    "passes": Part(60),
    "grpo": Part(90),
    "memory": Part(35),
}


def run_parts(names: Sequence[str], scale: Scale, seconds: float) -> dict[str, Row]:
    """Run parts one after the other, whatever becomes of those before. Returns for each: ok, seconds, and the lines of
    its processes. seconds: for all parts."""
    began, rows = time.perf_counter(), dict[str, Row]()
    (scale.folder / LINES).write_text("")
    with variables(scale.pick(ON_GPU, ON_CPU)):
        # Forks of a process that has imported vLLM spare each 10 to 20 s, if they can use the GPU.
        processes.START = "forkserver"
        if scale.gpu and not _run(60, "", _use_the_gpu).ok:
            processes.START = "spawn"
        for name in names:
            part, start = PARTS[name], time.perf_counter()
            end, found = start + min(scale.pick(1.0, 2.0) * part.seconds, seconds - (start - began)), list[Verdict]()
            most, of_part = (end - start) * (SHARE if part.arms else 1.0), replace(scale, part=name)
            for arm in part.arms or (None,):
                log = f"{name}_{arm}.log" if arm else f"{name}.log"
                left = min(most, end - time.perf_counter())
                found.append(_run(left, log, _body, part.module, arm, of_part, log, processes.START))
                of_part.note(**asdict(found[-1]), log=log)
            ok, lines = all(each.ok for each in found), [each.line for each in found]
            rows[name] = {"ok": ok, "seconds": time.perf_counter() - start, "lines": lines}
    return rows


def _run(seconds: float, log: str, body: Callable[..., None], *args: Any) -> Verdict:
    """Calls body(*args, pipe) in a process, for at most `seconds`. Returns the verdict that it sends."""
    if seconds <= 0:
        return Verdict(False, "not tried, the time is over")
    process, pipe = processes.spawned(body, *args, daemon=False)
    try:
        process.join(seconds)
        ended = f"ended after {seconds:.0f} s" if process.exitcode is None else f"ended with {process.exitcode}"
        with suppress(EOFError):
            if pipe.poll():
                sent: Verdict = pipe.recv()
                return sent
        return Verdict(False, f"{ended}: see {log}")
    finally:
        with suppress(ProcessLookupError):  # the processes that it started are in its process group
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.kill()
        process.join()


def _use_the_gpu(pipe: Connection) -> None:
    import torch

    torch.ones(1, device="cuda").add_(1)
    torch.cuda.synchronize()
    pipe.send(Verdict(True, ""))


def _body(module: str | None, arm: str | None, scale: Scale, log: str, start: str, pipe: Connection) -> NoReturn:
    """Body of a process: calls the part's function, and sends its verdict. An exception also becomes a verdict. log:
    the file of what it prints. start: how new processes start."""
    os.setsid()  # with the processes that it starts
    die_with_parent()
    scale = replace(scale, shown=os.dup(1))
    sys.stdout = sys.stderr = file = (scale.folder / log).open("w", buffering=1)
    for descriptor in (1, 2):
        os.dup2(file.fileno(), descriptor)
    processes.START = start if scale.gpu else "fork"
    try:
        function = getattr(import_module(module or f"{__package__}.{scale.part}"), scale.part)
        verdict: Verdict = function(scale, *filter(None, [arm]))
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict(False, f"{type(error).__name__}: {reason_of(error)[:300]}")
    pipe.send(verdict)
    os._exit(0)  # ends at once, without shutting down the engines
