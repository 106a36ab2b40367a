"""Faults that strike the engines of a cluster amid rollouts.

kill    SIGKILL for the engine       freeze  SIGSTOP for it       raise   its next pass raises
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

RAISED = "a fault that a test put here"


def failing() -> Callable[[Any], None]:
    """A function that lets the next pass of an engine raise an error. The engine's process imports no tests: a nested
    function goes there as it is."""

    def fail(engine: Any) -> None:
        def step() -> None:
            raise RuntimeError(RAISED)

        engine.llm.llm_engine.step = step

    return fail


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
        if fault == "raise":
            begun[0].actor.__ray_call__.remote(failing())
        original(cluster, running)
        if fault in ("kill", "freeze"):
            os.kill(begun[0].pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    with patch.object(Cluster, "_hand_out", hand_out):
        yield
