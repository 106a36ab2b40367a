"""Scripts that tests run in processes of their own, and what they leave."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 600  # a script that takes longer hangs
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
SIZES = (  # of a short training: two problems a step, four responses to each
    "reward=brevity",
    "trainer.per_device_train_batch_size=8",
    "trainer.num_generations=4",
    "trainer.max_completion_length=48",
    "engine.max_model_len=160",
)
RANK_RUN = ROOT / "tests" / "trl" / "rank_run.py"


def run_script(*arguments: str | Path, limit_s: float = LIMIT_S) -> str:
    """Run Python with these arguments in the repository, and return what it prints. It must end well, and in time."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
    finally:
        if process.poll() is None:
            # torchrun puts its ranks into process groups of their own.
            for started in (*psutil.Process(process.pid).children(recursive=True), process):
                started.kill()
            process.wait()
    assert process.returncode == 0, errors[-8000:]  # torchrun adds a report of its own
    return output


def of_ranks(folder: Path, name: str) -> list[Any]:
    """What each rank wrote into FOLDER/NAME_rankN.json."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{name}_rank*.json"))]
