"""Rollouts ahead on a cluster are those of one engine in the process, bit for bit, at the same lag."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import random_policy, sharpened
from scripts import run_script
from test_cluster_training import left_behind

sys.path[:0] = [str(Path(__file__).parents[1] / "trl")]

from lag_runs import outcome  # noqa: E402

from analysis import read  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs ray, which is not installed: run `make ray`"),
]
SCRIPT = Path(__file__).with_name("cluster_lag_run.py")
TWO = ("cluster=ray", "cluster.engines=2")
SHORT = "trainer.max_steps=5"


def trained(policy: str, folder: Path, runs: dict[str, list[str]]) -> None:
    run_script(SCRIPT, policy, folder, json.dumps(runs))
    assert not left_behind()


def column(folder: Path, name: str) -> list[Any]:
    return [row[name] for row in read.metrics(folder)]


def test_a_lag_on_a_cluster_changes_no_bit_also_with_a_kill_amid_a_rollout_ahead(
    repetitive_policy: str, tmp_path: Path
) -> None:
    runs = {
        "alone_1": ["none", "trainer.lag=1", SHORT],
        "alone_2": ["none", "trainer.lag=2", SHORT],
        "two_1": ["das", "trainer.lag=1", SHORT, *TWO],
        "two_2_kill": ["das", "trainer.lag=2", SHORT, *TWO],
    }
    trained(repetitive_policy, tmp_path, runs)
    for alone, two in (("alone_1", "two_1"), ("alone_2", "two_2_kill")):
        assert outcome(tmp_path / two) == outcome(tmp_path / alone)
        assert column(tmp_path / two, "lag") == column(tmp_path / alone, "lag")
        assert sum(column(tmp_path / two, "accepted")) > 0
        assert all(error < 1e-2 for error in column(tmp_path / two, "sync_error"))
    # Rollout 3 is submitted in the second step and trained on in the fourth one.
    lost = [step["lost_requests"] for step in column(tmp_path / "two_2_kill", "cluster")]
    assert lost[3] > 0 == sum(lost) - lost[3]
    assert column(tmp_path / "two_2_kill", "lag") == [0, 1, 2, 2, 2]


def test_a_draft_model_that_learns_reaches_engines_elsewhere(tmp_path: Path) -> None:
    """The engines compare all of the drafter's tensors with what they hold, or the run stops."""
    policy = sharpened(Path(random_policy(tmp_path / "policy")))
    draft_model = random_policy(tmp_path / "draft", num_hidden_layers=1, hidden_size=32)
    online = ["draft_model_online", "trainer.lag=1", SHORT, f"++arm.speculative.model={draft_model}", "head.share=0.5"]
    runs = {
        "none": ["none", "trainer.lag=1", SHORT],
        "alone": online,
        "beside": [*online, "engine.own_process=true"],
        "two": [*online, *TWO],
    }
    trained(policy, tmp_path, runs)
    alone = outcome(tmp_path / "alone")
    assert len(set(column(tmp_path / "alone", "head_loss"))) > 1
    for name in ("beside", "two"):
        assert outcome(tmp_path / name) == alone
        # Not as many: which requests share a pass differs, and with it what coupled drafts learn.
        assert sum(column(tmp_path / name, "accepted")) > 0
    plain = outcome(tmp_path / "none")
    assert {**alone, "final": None} == {**plain, "final": None}
    assert {name: alone["final"][name] for name in plain["final"]} == plain["final"]
