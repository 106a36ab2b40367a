"""Faults for task=kill_test and task=fault_test. The tasks put this folder on PYTHONPATH, so every process imports this
file.

DAS_FAULT=sync:N kills the run during a process's Nth weight sync, when the engine holds the new weights and has not
packed them yet. DAS_FAULT=engine:N makes the Nth decode pass raise an error; DAS_FAULT=memory:N makes it raise the
error of exhausted memory. The kinds of DEATHS kill the process at the Nth call of their function. With
DAS_FAULT=KIND:N:FILE the fault happens in one process only, the first that creates FILE; one of EVERYWHERE happens in
all.
"""

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import reduce
from typing import Any

# Kind of fault -> the function in which it happens: its module and its name.
PLACES = {
    "sync": ("das.engine.patches.weights", "repack_linear_layers"),
    "engine": ("das.verify.sampler", "KeyedSampler.begin_pass"),  # once in every pass
}
PLACES["memory"] = PLACES["engine"]
# Of an engine of a cluster: before it is built, when it gets other engines' texts, and when it has loaded weights.
DEATHS = {
    "start": ("das.cluster.rollout_engine", "build_engine"),
    "history": ("das.engine.proposer", "DasProposer.add_history"),
    "loaded": ("das.engine.worker", "lost_weights"),
}
PLACES |= DEATHS
EVERYWHERE = ("start",)


def _plant(kind: str, count: int, once: str) -> None:
    """Wait until the module of this kind of fault is imported. Then replace the function by one whose call number
    `count` causes the fault. once: see `_first`; "": every process has the fault."""
    module, path = PLACES[kind]
    *owners, name = path.split(".")
    while not hasattr(owner := reduce(lambda at, part: getattr(at, part, None), owners, sys.modules.get(module)), name):
        time.sleep(0.01)
    original = getattr(owner, name)
    calls_left = count

    def strike(*args: Any) -> Any:
        nonlocal calls_left
        calls_left -= 1
        if calls_left or (once and not _first(once) and kind not in EVERYWHERE):
            return original(*args)
        if kind in DEATHS:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "sync":
            os.killpg(0, signal.SIGKILL)
        raise (MemoryError if kind == "memory" else RuntimeError)("a fault that a test put here")

    setattr(owner, name, strike)


def _first(path: str) -> bool:
    """Create the file at `path`. Returns True if it did not exist, so that only one process causes the fault."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        return True
    return False


if "DAS_FAULT" in os.environ:
    kind, count, *once = os.environ["DAS_FAULT"].split(":", 2)
    threading.Thread(target=_plant, args=(kind, int(count), once[0] if once else ""), daemon=True).start()
