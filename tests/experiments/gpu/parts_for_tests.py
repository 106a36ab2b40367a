"""Parts that are broken on purpose."""

import os
import subprocess
import sys
import time

from experiments.gpu.verdict import Scale, Verdict


def good(scale: Scale) -> Verdict:
    count = scale.folder / "runs.txt"
    count.write_text(count.read_text() + "x" if count.exists() else "x")
    return Verdict(True, f"all is well on the {scale.pick('GPU', 'CPU')}", {"answer": 42, "form": "triton"})


def bad(scale: Scale) -> Verdict:
    return Verdict(False, "2 of 3 sequences agree")


def broken(scale: Scale) -> Verdict:
    raise RuntimeError("a part\nthat is broken")


def dying(scale: Scale) -> Verdict:
    os._exit(9)


def hanging(scale: Scale) -> Verdict:
    """Hangs with a child that hangs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (scale.folder / "child.txt").write_text(f"{child.pid}")
    time.sleep(600)
    raise AssertionError


def formed(scale: Scale) -> Verdict:
    return Verdict(True, f"engines are built as {scale.form}; good found {scale.numbers('good').get('answer')}")
