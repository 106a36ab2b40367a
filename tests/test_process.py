"""A child that asked for it ends with its parent; the modules are cheap enough for a fork server."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHILD = """
import time
from das.process import die_with_parent
die_with_parent()
print('ready', flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_the_child_ends_with_its_parent() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, env=environment, check=False
    )
    status = Path(f"/proc/{int(parent.stdout)}/stat")
    deadline = time.monotonic() + 10
    while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys; import das.process, experiments.run.processes; "
        "print(*{'torch', 'vllm', 'trl', 'numpy', 'transformers'} & sys.modules.keys())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == ""
