"""Parts that are broken on purpose."""

import os
import subprocess
import sys
import time

from experiments.gpu.engines import Scale, Verdict


def good(scale: Scale, word: str) -> Verdict:
    scale.note(answer=42)
    print("into the log")
    return Verdict(True, f"all is {word} on the {scale.pick('GPU', 'CPU')}")


def broken(scale: Scale) -> Verdict:
    raise RuntimeError("a part\nthat is broken")


def dying(scale: Scale) -> Verdict:
    os._exit(9)


def hanging(scale: Scale) -> Verdict:
    """Hangs with a child that hangs."""
    scale.note(child=subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
    time.sleep(600)
    raise AssertionError
