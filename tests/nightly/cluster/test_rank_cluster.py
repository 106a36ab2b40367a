"""Two ranks that train on a cluster compute what two ranks with an engine each do, bit for bit."""

from pathlib import Path
from typing import Any

from scripts import ROOT, TWO_RANKS, exact, of_ranks, run_script

SCRIPT = ROOT / "tests/cluster/rank_cluster_run.py"


def test_a_cluster_changes_nothing(two_ranks: list[Any], repetitive_policy: str, tmp_path: Path) -> None:
    """das on two engines of a cluster, and none with an engine in each rank."""
    run_script(*TWO_RANKS, SCRIPT, repetitive_policy, tmp_path, "das:2")
    cluster = of_ranks(tmp_path, "das_2")
    assert exact(cluster) == exact(two_ranks)
    asked, asked_of_own = (
        [[step["problems"] for step in rank["steps"]] for rank in each] for each in (cluster, two_ranks)
    )
    assert asked == asked_of_own
    assert two_ranks[0]["weights"] == two_ranks[1]["weights"]
    assert two_ranks[0]["steps"][0]["tokens"] != two_ranks[1]["steps"][0]["tokens"]
    assert sum(step["accepted"] for rank in cluster for step in rank["steps"]) > 0
