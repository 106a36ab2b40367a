"""Rollouts ahead on a cluster are those of one engine in the process, bit for bit, at the same lag."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import run_script
from test_cluster_training import left_behind

sys.path[:0] = [str(Path(__file__).parents[1] / "trl")]

from lag_runs import outcome  # noqa: E402

from analysis import read  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
]
SCRIPT = Path(__file__).with_name("cluster_lag_run.py")
TWO = ("cluster=ray", "cluster.engines=2")
SHORT = ["trainer.lag=2", "trainer.max_steps=5"]
KILLED = "das_two_kill"  # an engine is killed amid rollout 3


@pytest.fixture(scope="module")
def trained(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of das and of a head that learns: on an engine in the process, beside it, and on a cluster of two."""
    folder = tmp_path_factory.mktemp("ahead")
    heads = ["head.share=0.5", "head.responses=16", "head.epochs=2", f"cache={folder / 'cache'}"]
    online = ["eagle3_online", *SHORT, *heads]
    runs = {
        "none": ["none", *SHORT],
        KILLED: ["das", *SHORT, *TWO],
        "online": online,
        "online_beside": [*online, "engine.own_process=true"],
        "online_two": [*online, *TWO],
    }
    run_script(SCRIPT, repetitive_policy, folder, json.dumps(runs), limit_s=1800)
    assert not left_behind()
    return folder


def column(folder: Path, name: str) -> list[Any]:
    return [row[name] for row in read.metrics(folder)]


def test_a_lag_on_a_cluster_changes_no_bit_also_with_a_kill_amid_a_rollout_ahead(trained: Path) -> None:
    assert outcome(trained / KILLED) == outcome(trained / "none")
    assert column(trained / KILLED, "lag") == column(trained / "none", "lag") == [0, 1, 2, 2, 2]
    assert sum(column(trained / KILLED, "accepted")) > 0
    assert all(error < 1e-2 for error in column(trained / KILLED, "sync_error"))
    # Rollout 3 is submitted in the second step and trained on in the fourth one.
    lost = [step["lost_requests"] for step in column(trained / KILLED, "cluster")]
    assert lost[3] > 0 == sum(lost) - lost[3]


def test_a_head_that_learns_reaches_engines_elsewhere(trained: Path) -> None:
    """The engines compare all of the head's tensors with what they hold, or the run stops."""
    alone, plain = outcome(trained / "online"), outcome(trained / "none")
    assert len(set(column(trained / "online", "head_loss"))) > 1
    for name in ("online_beside", "online_two"):
        assert outcome(trained / name) == alone
        # Not as many: which requests share a pass differs, and with it what coupled drafts learn.
        assert sum(column(trained / name, "accepted")) > 0
    assert {**alone, "final": None} == {**plain, "final": None}
    assert {name: alone["final"][name] for name in plain["final"]} == plain["final"]
