"""A run that a test strikes ends with the test."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
PARENT = """
import os, sys
from pathlib import Path
from experiments.harness.runs import struck_runs
struck_runs.ROOT = Path(sys.argv[1])
process = struck_runs.start([], Path(sys.argv[1]) / "run")
process.stdout.readline()
print(process.pid, flush=True)
os.kill(os.getpid(), 15)
"""


def test_a_run_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    status = Path(f"/proc/{int(parent.stdout)}/stat")
    deadline = time.monotonic() + 10
    while status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() < deadline, "the run outlived the process that started it"
        time.sleep(0.02)
