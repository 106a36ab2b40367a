"""Faults for strikes.py, which puts this folder on PYTHONPATH, so that every process of a struck run imports this file.

DAS_FAULT=KIND:N:FILE: call number N of the kind's function (FAULTS) causes the fault, in the first process that gets so
far, which creates FILE. A fault of EVERYWHERE happens in every process.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, reduce
from typing import Any


def _fail(error: type[Exception]) -> None:
    raise error("a fault that a test put here")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# Kind of fault -> the function in which it happens, by its module and its name, and what happens there.
PASS = ("das.engine.runner.verifier", "Draws.begin_pass")  # once in every pass
FAULTS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    # The whole run dies when the engine holds new weights and has not packed them yet.
    "sync": ("das.engine.patches.weights", "repack_linear_layers", partial(os.killpg, 0, signal.SIGKILL)),
    "engine": (*PASS, partial(_fail, RuntimeError)),
    "memory": (*PASS, partial(_fail, MemoryError)),
    # An engine of a cluster dies: before it is built, when it gets other engines' texts, when it has loaded weights.
    "start": ("das.cluster.rollout_engine", "build_engine", _die),
    "history": ("das.engine.proposer", "DasProposer.add_history", _die),
    "loaded": ("das.engine.worker", "lost_weights", _die),
}
EVERYWHERE = ("start",)


def _plant(kind: str, count: int, mark: str) -> None:
    """Wait until the module of this kind of fault is imported. Then replace the function by one whose call number
    `count` causes the fault, unless another process has created the file `mark` before."""
    module, path, cause = FAULTS[kind]
    *owners, name = path.split(".")
    while not hasattr(owner := reduce(lambda at, part: getattr(at, part, None), owners, sys.modules.get(module)), name):
        time.sleep(0.01)
    original = getattr(owner, name)
    calls_left = count

    def strike(*args: Any) -> Any:
        nonlocal calls_left
        calls_left -= 1
        if not calls_left and (_first(mark) or kind in EVERYWHERE):
            cause()
        return original(*args)

    setattr(owner, name, strike)


def _first(path: str) -> bool:
    """Create the file at `path`. Returns True if it did not exist, so that only one process causes the fault."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    return False


if "DAS_FAULT" in os.environ:
    kind, count, mark = os.environ["DAS_FAULT"].split(":", 2)
    threading.Thread(target=_plant, args=(kind, int(count), mark), daemon=True).start()
