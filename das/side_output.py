"""Side outputs: statistics, progress, traces, W&B, pictures. One that fails says so in a line, and the run goes on."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from das.errors import reason_of

# Not below vLLM's logger: TRL's import lets that one say nothing but errors.
logger = logging.getLogger("das")
_said: set[str] = set()


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
