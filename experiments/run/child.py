"""Run commands in child processes, which are killed when this process ends."""

import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import IO, Any

from rewards.process import die_with_parent


def run(command: Sequence[str], on_line: Callable[[str], Any], errors: int | IO[str] = subprocess.STDOUT) -> int:
    """Run a command and return its exit code. If this process is told to end, so is the command, and it is waited for.

    on_line: called with each line of its output. errors: receives its stderr.

    The child has a session of its own, so an interrupt at the terminal does not reach it.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, preexec_fn=die_with_parent
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                on_line(line.rstrip("\n"))
        except BaseException as ended:
            child.send_signal(signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM)
            raise
    return child.returncode
