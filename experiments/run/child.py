"""A command of run.py as a process of its own, which ends with this one."""

import signal
import subprocess
from collections.abc import Callable, Sequence
from typing import IO, Any

from das.process import die_with_parent


def run(command: Sequence[str], say: Callable[[str], Any], errors: int | IO[str] = subprocess.STDOUT) -> int:
    """Run it, each line of its output to `say`; returns the exit code. errors: where its standard error goes.

    In a session of its own an interrupt at the terminal reaches it once, through us.
    """
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
        preexec_fn=die_with_parent,
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                say(line.rstrip("\n"))
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
    return child.returncode
