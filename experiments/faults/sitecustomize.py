"""task=kill_test and task=fault_test put this folder on PYTHONPATH: each process of a run imports this module.

DAS_FAULT=sync:N kills the run during a process's Nth weight sync, when the engine holds the new weights and has not
packed them yet. DAS_FAULT=engine:N makes the Nth decode pass raise, DAS_FAULT=memory:N as if there were no memory left.
"""

import os
import signal
import sys
import threading
import time
from typing import Any

# Kind of fault -> the function that strikes: its module and its name.
PLACES = {
    "sync": ("das.engine.patches.weights", "repack_linear_layers"),
    "engine": ("das.engine.patches.runner", "_sample"),
}
PLACES["memory"] = PLACES["engine"]


def _plant(kind: str, count: int) -> None:
    """Wait until the module is imported, then replace its function by one that strikes when called `count` times."""
    module, name = PLACES[kind]
    while not hasattr(sys.modules.get(module), name):
        time.sleep(0.01)
    original = getattr(sys.modules[module], name)
    calls_left = count

    def strike(*args: Any) -> Any:
        nonlocal calls_left
        calls_left -= 1
        if calls_left == 0 and kind == "sync":
            os.killpg(0, signal.SIGKILL)
        if calls_left == 0 and kind == "memory":
            raise MemoryError("a fault that a test put here")
        if calls_left == 0:
            raise RuntimeError("a fault that a test put here")
        return original(*args)

    setattr(sys.modules[module], name, strike)


if "DAS_FAULT" in os.environ:
    kind, _, count = os.environ["DAS_FAULT"].partition(":")
    threading.Thread(target=_plant, args=(kind, int(count)), daemon=True).start()
