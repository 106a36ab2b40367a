"""Two ranks on two engines of a cluster are killed, and go on with one engine: equal to two ranks with own engines."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from analysis import read
from experiments.harness.resume import CHECKPOINTS
from experiments.training import checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`"),
]
ROOT = Path(__file__).resolve().parents[2]
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
FAULTS = str(ROOT / "tests" / "trl" / "rank_faults.py")
RUN = [
    "task=train", "engine.processes=2", "reward=brevity", "wandb=off", "budget=fixed", "budget.tokens=8",
    "data.problems=8", "trainer.max_steps=4", "trainer.per_device_train_batch_size=8", "trainer.num_generations=4",
    "trainer.max_completion_length=48", "engine.max_model_len=160", "trainer.learning_rate=0.01", "checkpoint.every=1",
]  # fmt: skip
ON_CLUSTER = ["cluster=ray", "cluster.engines=2", "cluster.silent_s=200"]
EXACT = ("completions_digest", "rewards_digest", "loss", "grad_norm")


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUNCH, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def test_another_number_of_engines_changes_nothing(repetitive_policy: str, tmp_path: Path) -> None:
    own, cluster = tmp_path / "own", tmp_path / "cluster"
    start = [*RUN, f"policy.path={repetitive_policy}"]
    run = launched("run.py", *start, "arm=none", f"hydra.run.dir={own}")
    assert run.returncode == 0, run.stderr
    killed = launched(FAULTS, "kill", "3", *start, "arm=das", *ON_CLUSTER, f"hydra.run.dir={cluster}")
    assert killed.returncode != 0
    assert checkpoint.steps(cluster / CHECKPOINTS)[0] == 2, killed.stderr
    last = launched("run.py", f"resume={cluster}", "cluster=ray", "cluster.engines=1")
    assert last.returncode == 0, last.stderr
    assert "resuming after step 2" in last.stdout
    rows, rows_of_own = read.metrics(cluster), read.metrics(own)
    assert [[row[name] for name in EXACT] for row in rows] == [[row[name] for name in EXACT] for row in rows_of_own]
    assert read.final(cluster) == read.final(own)
    assert [row["cluster"]["engines"] for row in rows] == [2, 2, 1, 1]
    assert sum(row["accepted"] for row in rows) > 0
    assert (cluster / "history.npz").exists()
    assert not (cluster / "history_rank1.npz").exists()
