"""Faults that strike the engines of a cluster amid rollouts: "kill" is SIGKILL for an engine, "freeze" SIGSTOP.

One whose pass raises: test_rollout_engine.py, nightly/strikes.py.
"""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import psutil

ENGINE = "ray::RolloutEng"  # names have 15 characters in the kernel
LEFT_S = 60  # seconds after which an engine whose trainer or Ray is gone counts as left for good


@contextmanager
def planted(faults: Sequence[str]) -> Iterator[None]:
    """Inside, each fault strikes in its rollout of the clusters of this process, as soon as an engine has requests.

    faults: by rollout, counted from 0. "": none strikes.
    """
    from das.cluster.cluster import Cluster

    original = Cluster._hand_out
    struck: list[Any] = []

    def hand_out(cluster: Cluster, running: Any) -> None:
        begun = [engine for engine in cluster.engines.ready if engine.number in running.began_at]
        fault = ""
        if running not in struck and begun:
            struck.append(running)
            fault = faults[len(struck) - 1] if len(struck) <= len(faults) else ""
        original(cluster, running)
        if fault:
            os.kill(begun[0].pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    with patch.object(Cluster, "_hand_out", hand_out):
        yield


def left_for_good() -> list[psutil.Process]:
    """The engines of this machine that run on although their Ray is gone. Those of other tests, which may run
    meanwhile, have one."""
    end = time.monotonic() + LEFT_S
    while True:
        lost = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                parent = process.parent()
                ended = process.status() == psutil.STATUS_ZOMBIE  # its new parent may be slow to take note
                if process.name().startswith(ENGINE) and not ended and (parent is None or parent.name() != "raylet"):
                    lost.append(process)
        if not lost or time.monotonic() > end:
            return lost
        time.sleep(0.1)
