"""A training on a cluster of engines is the training on one engine, bit for bit, whatever happens to the engines.

The runs are those of tests/runs.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import recorded_sampling
from faults import left_for_good
from runs import column, compared, require_equal

from analysis import read
from das.drafter.saved import read_history

pytestmark = pytest.mark.slow
Runs = Callable[[str], Path]


@pytest.mark.parametrize("name", compared(on_cluster=True))
def test_equal(runs: Runs, name: str) -> None:
    require_equal(name, runs)
    assert not left_for_good()


def test_killed_and_frozen_engines_are_replaced(runs: Runs) -> None:
    rows = column(runs("cluster"), "cluster")
    events = [event["event"] for event in read.lines(runs("cluster") / "engines.jsonl")]
    for why in ("its process died", "it did not answer"):
        assert any(event.startswith(f"lost: {why}") for event in events), why
    assert sum(row["lost_requests"] > 0 for row in rows) >= 2
    assert sum(row["restarts"] for row in rows) >= 2


def test_the_exchanged_history_holds_the_recorded_distributions(runs: Runs) -> None:
    """So an engine that restarts drafts from them, and so does a run that begins with this history."""
    sampling = recorded_sampling(runs("cluster"))
    assert sampling == recorded_sampling(runs("das_evaluated"))
    recorded, texts = {text for text, _ in sampling}, read_history(runs("cluster") / "history.npz").texts
    assert len(texts) > 20
    assert all(text.remembered is not None and text.remembered.text() in recorded for text in texts)


@pytest.mark.nightly
def test_a_run_goes_on_with_another_number_of_engines(runs: Runs) -> None:
    assert [row["engines"] for row in column(runs("cluster_resumed"), "cluster")] == [2, 2, 2, 2, 2, 1]


@pytest.mark.nightly
def test_a_kill_amid_a_rollout_ahead(runs: Runs) -> None:
    folder = runs("cluster_lag2")
    assert column(folder, "lag") == column(runs("none_lag2"), "lag") == [0, 1, 2, 2, 2, 2]
    lost = [step["lost_requests"] for step in column(folder, "cluster")]
    assert lost[3] > 0 == sum(lost) - lost[3]


@pytest.mark.nightly
def test_a_head_that_learns_reaches_engines_elsewhere(runs: Runs) -> None:
    """The engines compare all of the head's tensors with what they hold, or the run stops."""
    assert len(set(column(runs("online_lag2"), "head_loss"))) > 1
