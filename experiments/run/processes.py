"""Start processes: with a pipe, as forks of a warm process where that works; a command; functions, one on each core.

It imports little, because forks of the warm process import it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, TypeVar

from rewards.process import die_with_parent

# How new processes start. "forkserver": as forks of a warm process, which has imported vLLM and TRL (warm.py beside
# this file), and spares each 12 s of a processor. "spawn": as new interpreters, because on a GPU a fork can hardly use
# CUDA. "fork": as forks of this process, where it has imported what they need, and computed nothing.
START = "spawn" if Path("/dev/nvidiactl").exists() else "forkserver"
WARM = "experiments.run.warm"

ENDING = (signal.SIGINT, signal.SIGTERM)  # tell a process to end

_ours: weakref.WeakSet[Connection] = weakref.WeakSet()  # this process's ends of the pipes of those it started


def spawned(body: Callable[..., None], *args: Any, name: str | None = None) -> tuple[BaseProcess, Connection]:
    """Start a new Python process that calls body(*args, pipe). Returns the process and this end of the pipe."""
    context: Any = multiprocessing.get_context(START)
    ours, theirs = context.Pipe()
    if context.get_start_method() == "forkserver":
        process = warm_process(body, *args, theirs, name=name)
    else:
        process = context.Process(target=_forked, args=(body, *args, theirs), name=name)
    process.start()
    _ours.add(ours)
    theirs.close()
    return process, ours


def warm_process(body: Callable[..., None], *args: Any, name: str | None = None) -> BaseProcess:
    """Returns a process, not started yet, that will call body(*args) as a fork of the warm process. It gets the
    environment and the output of this one, and ends with it."""
    context = warm_context()
    inherited = dict(os.environ), _Descriptor(1), _Descriptor(2)
    return context.Process(target=_begin, args=(*inherited, body, *args), name=name)


def warm_context() -> Any:
    """Returns the multiprocessing context of forks of the warm process, and starts that if there is none yet. What its
    imports print goes nowhere: if one fails, the process that needs it says so."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    with open(os.devnull, "w") as nowhere, output_into(nowhere.fileno()):
        forkserver.ensure_running()
    return context


@contextmanager
def output_into(descriptor: int) -> Iterator[None]:
    """Send this process's output, that of C libraries included, to a descriptor inside the `with` block."""
    saved = os.dup(1), os.dup(2)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # on a full disk a log loses these lines
                stream.flush()
        for number, own in enumerate(saved, start=1):
            os.dup2(own, number)
            os.close(own)


class _Descriptor:
    """A file descriptor of this process, handed on to one that starts."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (reduction.DupFd(self.number),)  # a descriptor can be duplicated only while a process starts


def _itself(duplicate: Any) -> Any:
    return duplicate


def _begin(environment: dict[str, str], out: Any, errors: Any, body: Callable[..., None], *args: Any) -> None:
    """Body of a fork of the warm process."""
    # The parent of a fork is the warm process, which lives as long as a fork does. So Linux ends none with who asked.
    threading.Thread(target=_end_with, args=[multiprocessing.parent_process()], daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    for number, descriptor in ((1, out), (2, errors)):
        found = descriptor.detach()
        os.dup2(found, number)
        os.close(found)
    atexit.unregister(os._exit)  # with which the warm process ends
    _as_program(body, args)


def _end_with(asker: Any) -> None:
    """End this process as soon as the one that asked for it ends."""
    asker.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _forked(body: Callable[..., None], *args: Any) -> None:
    """Body of a fork of this process: it leaves the pipes of its siblings, so that these notice when one closes."""
    for pipe in list(_ours):
        pipe.close()
    atexit._clear()  # what is registered belongs to the process from which it was forked; there is no public name
    _as_program(body, args)


def _as_program(body: Callable[..., None], args: Sequence[Any]) -> None:
    """Call body(*args), and then what is registered at atexit, as a program of its own does: multiprocessing ends a
    fork by os._exit."""
    try:
        body(*args)
    finally:
        atexit._run_exitfuncs()


def run_command(
    command: Sequence[str], on_line: Callable[[str], Any], errors: int | IO[str] = subprocess.STDOUT
) -> int:
    """Run a command and return its exit code. If this process is told to end, so is the command, and it is waited for.

    on_line: called with each line of its output. errors: receives its stderr.

    The child has a session of its own, so an interrupt at the terminal does not reach it.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, preexec_fn=die_with_parent
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                on_line(line.rstrip("\n"))
        except BaseException as ended:
            child.send_signal(signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM)
            raise
    return child.returncode


Result = TypeVar("Result")
_jobs: Sequence[Callable[[], Any]] = ()  # set in the processes of the pool


def in_processes(
    jobs: Sequence[Callable[[], Result]], on_done: Callable[[int], Any] = lambda done: None
) -> list[Result]:
    """Call the functions `jobs` in as many processes as there are cores. Returns their results in the order of the
    jobs. on_done: called with the number of finished jobs whenever one has finished.

    The processes are forked, so only results are pickled. The calling process must not have started threads before.
    Raises the error of a job at once: nobody waits for the other jobs, nor where this process is told to end.
    """
    fork = multiprocessing.get_context("fork")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(os.cpu_count(), fork, initializer=_take, initargs=(jobs,)) as pool:
        try:
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # the processes inherit it: this one ends them
            running = [pool.submit(_do, number) for number in range(len(jobs))]
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            for done, job in enumerate(as_completed(running), 1):
                job.result()
                on_done(done)
            return [job.result() for job in running]
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:  # the pool would wait for their jobs
                process.kill()
            raise


def _take(jobs: Sequence[Callable[[], Any]]) -> None:
    global _jobs
    _jobs = jobs
    die_with_parent()


def _do(number: int) -> Any:
    return _jobs[number]()
