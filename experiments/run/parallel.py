"""Run independent functions in parallel, one on each core."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from experiments.run.errors import ENDS
from rewards.process import die_with_parent

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
    with ProcessPoolExecutor(os.cpu_count(), fork, initializer=_begin, initargs=(jobs,)) as pool:
        try:
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # the processes inherit it: this one ends them
            running = [pool.submit(_run, number) for number in range(len(jobs))]
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            for done, job in enumerate(as_completed(running), 1):
                job.result()
                on_done(done)
            return [job.result() for job in running]
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:  # the pool would wait for their jobs
                process.kill()
            raise


def _begin(jobs: Sequence[Callable[[], Any]]) -> None:
    global _jobs
    _jobs = jobs
    die_with_parent()


def _run(number: int) -> Any:
    return _jobs[number]()
