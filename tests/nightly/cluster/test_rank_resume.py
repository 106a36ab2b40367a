"""Two ranks on two engines of a cluster are killed, and go on with one engine: equal to two ranks with own engines."""

import subprocess
import sys
from pathlib import Path

from conftest import RANKS, recorded_sampling
from scripts import ROOT, TWO_RANKS

from analysis import read
from experiments.arm.resume import CHECKPOINTS
from experiments.training import checkpoint

FAULTS = str(ROOT / "tests" / "trl" / "rank_faults.py")
ON_CLUSTER = ["cluster=ray", "cluster.engines=2", "cluster.silent_s=200"]
EXACT = ("completions_digest", "rewards_digest", "loss", "grad_norm")


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *TWO_RANKS, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)


def test_another_number_of_engines_changes_nothing(ranks_run: Path, repetitive_policy: str, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    start = [*RANKS, "arm=das", f"policy.path={repetitive_policy}"]
    killed = launched(FAULTS, "kill", "3", *start, *ON_CLUSTER, f"hydra.run.dir={cluster}")
    assert killed.returncode != 0
    assert checkpoint.steps(cluster / CHECKPOINTS)[0] == 2, killed.stderr
    last = launched("run.py", f"resume={cluster}", "cluster=ray", "cluster.engines=1")
    assert last.returncode == 0, last.stderr
    assert "resuming after step 2" in last.stdout
    rows, rows_of_own = read.metrics(cluster), read.metrics(ranks_run)
    assert [[row[name] for name in EXACT] for row in rows] == [[row[name] for name in EXACT] for row in rows_of_own]
    assert read.final(cluster) == read.final(ranks_run)
    assert recorded_sampling(cluster) == recorded_sampling(ranks_run)
    assert [row["cluster"]["engines"] for row in rows] == [2, 2, 1, 1]
    assert sum(row["accepted"] for row in rows) > 0
    assert (cluster / "history.npz").exists()
    assert not (cluster / "history_rank1.npz").exists()
