"""Threads that do not keep the program from ending."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Result = TypeVar("Result")


class DaemonThreads(ThreadPoolExecutor):
    """An executor that runs every call in a daemon thread of its own. Such threads do not keep Python from ending.

    It subclasses ThreadPoolExecutor because asyncio takes no other executor. A plain one has threads that are no
    daemons.
    """

    def submit(self, fn: Callable[P, Result], /, *args: P.args, **kwargs: P.kwargs) -> "Future[Result]":
        """See Executor.submit. A call begins at once, and so cannot be cancelled."""
        future: Future[Result] = Future()
        future.set_running_or_notify_cancel()
        threading.Thread(target=_call, args=(future, fn, args, kwargs), name="rewards", daemon=True).start()
        return future


def _call(future: "Future[Any]", function: Callable[..., Any], args: Any, kwargs: Any) -> None:
    try:
        future.set_result(function(*args, **kwargs))
    except BaseException as error:
        future.set_exception(error)
