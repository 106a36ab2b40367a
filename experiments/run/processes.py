"""Start processes with a pipe, as forks of a warm process where that works. Imports only the standard library."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# How new processes start. "forkserver": as forks of a warm process, which has imported vLLM and TRL (warm.py beside
# this file), and spares each 12 s of a processor. "spawn": as new interpreters, because on a GPU a fork can hardly use
# CUDA. "fork": as forks of this process, where it has imported what they need, and computed nothing.
START = "spawn" if Path("/dev/nvidiactl").exists() else "forkserver"
WARM = "experiments.run.warm"

_ours: weakref.WeakSet[Connection] = weakref.WeakSet()  # this process's ends of the pipes of those it started


def spawned(
    body: Callable[..., None], *args: Any, name: str | None = None, daemon: bool = True
) -> tuple[BaseProcess, Connection]:
    """Start a new Python process that calls body(*args, pipe). Returns the process and this end of the pipe.

    daemon: whether the new process is ended when this one ends.
    """
    context: Any = multiprocessing.get_context(START)
    ours, theirs = context.Pipe()
    if context.get_start_method() == "forkserver":
        process = warm_process(body, *args, theirs, name=name, daemon=daemon)
    else:
        process = context.Process(target=_forked, args=(body, *args, theirs), name=name, daemon=daemon)
    process.start()
    _ours.add(ours)
    theirs.close()
    return process, ours


def warm_process(body: Callable[..., None], *args: Any, name: str | None = None, daemon: bool = True) -> BaseProcess:
    """Returns a process, not started yet, that will call body(*args) as a fork of the warm process. It gets the
    environment and the output of this one, and ends with it."""
    context = warm_context()
    inherited = dict(os.environ), _Descriptor(1), _Descriptor(2)
    return context.Process(target=_begin, args=(*inherited, body, *args), name=name, daemon=daemon)


def warm_context() -> Any:
    """Returns the multiprocessing context of forks of the warm process, and starts that if there is none yet. What its
    imports print goes nowhere: if one fails, the process that needs it says so."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM])
    saved = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    try:
        forkserver.ensure_running()
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (*saved, nowhere):
            os.close(descriptor)
    return context


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
    _as_program(body, args, forget=[os._exit])


def _end_with(asker: Any) -> None:
    """End this process as soon as the one that asked for it ends."""
    asker.join()
    os.kill(os.getpid(), signal.SIGKILL)


def _forked(body: Callable[..., None], *args: Any) -> None:
    """Body of a fork of this process: it leaves the pipes of its siblings, so that these notice when one closes."""
    for pipe in list(_ours):
        pipe.close()
    _as_program(body, args)


def _as_program(body: Callable[..., None], args: Sequence[Any], forget: Sequence[Callable[..., Any]] = ()) -> None:
    """Call body(*args), and then what is registered at atexit, as a program of its own does: multiprocessing ends a
    fork by os._exit. Before, forget what the process from which it was forked does at its end.

    forget: the functions to be forgotten; none: all. atexit has no public names for forgetting and for calling all.
    """
    for each in forget:
        atexit.unregister(each)
    if not forget:
        atexit._clear()
    try:
        body(*args)
    finally:
        atexit._run_exitfuncs()
