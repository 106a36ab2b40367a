"""task=check_gpu: check and measure what needs a GPU, in one call of nine minutes.

The parts run one after another, the most valuable first, each in processes of its own with a time limit. A part that
fails or hangs does not stop the others. Nothing is downloaded. Without a GPU the parts run at tiny shapes, which only
tests this command.

lines.jsonl has a line for each number as soon as it is known, and it is printed at once. result.json:
parts.NAME.{ok, seconds, lines}; device, commit, date, versions. latency.json: for task.latency of other tasks.
"""

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
from pathlib import Path
from typing import Any, NoReturn

from das.commands.doctor import nvidia_driver
from das.engine.build import variables
from das.general.errors import reason_of
from experiments.gpu.engines import LINES, Row, Scale, Verdict
from experiments.run import processes
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, commit, device_name, versions
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig
from rewards.process import die_with_parent


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Run the parts, and write result.json. Raises RunFailed if one failed."""
    began, task, progress = time.perf_counter(), config.task, Progress(0)
    names = list(PARTS) if task.parts is None else [name for name in PARTS if name in task.parts]
    if not names or (task.parts is not None and len(names) < len(task.parts)):
        raise UserError(f"task.parts={list(task.parts)}: choose from {', '.join(PARTS)}")
    recorded = None if task.recorded is None else Path(task.recorded)
    if recorded is not None and not recorded.exists():
        raise UserError(f"task.recorded={recorded} does not exist")
    gpu = task.device != "cpu" and nvidia_driver() is not None
    if task.device == "cuda" and not gpu:
        raise UserError("task.device=cuda: no NVIDIA driver is loaded (python -m das doctor says more)")
    run_folder = RunFolder(Path(folder), config.resolved)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    tiny = "" if gpu else "; tiny shapes on a CPU: they test this command, and tell nothing about a GPU"
    progress.note(f"{', '.join(names)}: at most {task.seconds:g} s; all in {folder}{tiny}")
    scale = Scale(gpu, Path(folder).absolute(), Path(config.cache).absolute(), recorded and recorded.absolute())
    parts = run_parts(names, scale, float(task.seconds) - (time.perf_counter() - began))
    made = {"device": device_name() if gpu else "CPU", "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    run_folder.write_result({**made, "gpu": gpu, "versions": versions(), "parts": parts})
    for name, row in parts.items():
        for line in row["lines"]:
            progress.note(f"{'ok    ' if row['ok'] else 'FAILED'} {name:<8s} {row['seconds']:4.0f} s  {line}")
    if failed := [name for name, row in parts.items() if not row["ok"]]:
        raise RunFailed(f"{len(failed)} of {len(parts)} parts failed: {', '.join(failed)} (see {folder})")


# torch must ask NVML, not CUDA, whether there is a GPU: a fork of a process that called CUDA cannot use it.
ON_GPU = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
# Tiny shapes gain nothing by more threads, and lose much where a core is not free.
ON_CPU = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
SHARE = 0.4  # of a part's time that one of several processes may take
ARMS = ("stock", "stock_core", "das", "none", "ngram")  # of the part `speed`; stock_core: its core in its own process


@dataclass(frozen=True)
class Part:
    """A part is a function of a module, with its name. seconds: for all its processes, on a GPU. arms: the function's
    argument in each of its processes."""

    seconds: float
    module: str
    arms: tuple[str, ...] = ()


PARTS = {  # the most valuable ones first; their limits fit into 560 s
    "sampler": Part(25, f"{__package__}.exact"),
    "speed": Part(290, f"{__package__}.speed", ARMS),
    "tokens": Part(60, f"{__package__}.exact"),
    "passes": Part(60, f"{__package__}.speed"),
    "grpo": Part(90, f"{__package__}.exact"),
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
    process, pipe = processes.spawned(body, *args)
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


def _body(module: str, arm: str | None, scale: Scale, log: str, start: str, pipe: Connection) -> NoReturn:
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
        function = getattr(import_module(module), scale.part)
        verdict: Verdict = function(scale, *filter(None, [arm]))
    except Exception as error:
        traceback.print_exc()
        verdict = Verdict(False, f"{type(error).__name__}: {reason_of(error)[:300]}")
    pipe.send(verdict)
    os._exit(0)  # ends at once, without shutting down the engines
