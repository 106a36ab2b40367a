"""Run independent functions in parallel, one on each core."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

Result = TypeVar("Result")
_jobs: Sequence[Callable[[], Any]] = ()  # set in the processes of the pool


def in_processes(
    jobs: Sequence[Callable[[], Result]], on_done: Callable[[int], Any] = lambda done: None
) -> list[Result]:
    """Call the functions `jobs` in as many processes as there are cores. Returns their results in the order of the
    jobs. on_done: called with the number of finished jobs whenever one has finished.

    The processes are forked, so only results are pickled. The calling process must not have started threads before.
    Raises the error of a job.
    """
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(os.cpu_count(), fork, initializer=_take, initargs=(jobs,)) as pool:
        running = [pool.submit(_run, number) for number in range(len(jobs))]
        for done, _ in enumerate(as_completed(running), 1):
            on_done(done)
        return [job.result() for job in running]


def _take(jobs: Sequence[Callable[[], Any]]) -> None:
    global _jobs
    _jobs = jobs


def _run(number: int) -> Any:
    return _jobs[number]()
