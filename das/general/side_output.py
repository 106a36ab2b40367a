"""Side outputs: printed lines, statistics, traces, W&B, pictures. One that fails says so once, and the run goes on. And
what a process does while it starts: das says it here, for whoever wants to show it."""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from das.general.errors import reason_of

# Not below vLLM's logger: TRL's import lets that one say nothing but errors.
logger = logging.getLogger("das")
_said: set[str] = set()
_listener: Callable[[str], object] | None = None


@contextmanager
def side_output(what: str, say: Callable[[str], object] | None = None) -> Iterator[None]:
    """Let the block fail with one line: no rollout and no update may end by it. what: names the output in the line.

    say: takes the line; None: the log gets it, once in a process for each `what`.
    """
    try:
        yield
    except Exception as error:
        line = f"{what} failed, and the run goes on without: {type(error).__name__}: {reason_of(error)[:300]}"
        if say is not None:
            say(line)
        elif what not in _said:
            _said.add(what)
            logger.warning("das: %s", line)


class _Descriptor(io.FileIO):
    """A file descriptor that outlives its reader: what nobody reads goes nowhere, and so does all that follows. lasts:
    what else it outlives."""

    lasts: type[OSError] = BrokenPipeError

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except self.lasts:
            with side_output("the printed output"):
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        return len(data)


def keep_printing(lasts: type[OSError] = BrokenPipeError) -> None:
    """Let this process go on to its end where nobody reads its output any more, as after `| head`. lasts: see
    `lasting`."""
    if sys.stdout is not None:  # it is closed (>&-)
        sys.stdout = lasting(1, closefd=False, lasts=lasts)


def lasting(descriptor: int, closefd: bool = True, lasts: type[OSError] = OSError) -> TextIO:
    """Returns a stream to this file descriptor that outlives its reader. closefd: whether the descriptor is closed
    with the stream. lasts: the errors of writing that end nothing; OSError: a full disk, too."""
    file = _Descriptor(descriptor, "w", closefd=closefd)
    file.lasts = lasts
    buffer = io.BufferedWriter(file)
    return io.TextIOWrapper(buffer, sys.stdout.encoding, sys.stdout.errors, line_buffering=True)


def listen_to_stages(listener: Callable[[str], object] | None) -> None:
    """Call `listener` with each stage that begins in this process from now on; None: nobody listens."""
    global _listener
    _listener = listener


def stage(what: str) -> None:
    """Say what this process does now, such as "loads the policy"."""
    if _listener is not None:
        _listener(what)
