"""What result.json says of a cluster."""

from typing import Any

from analysis.metrics import cluster_result


def step(tokens: int, **cluster: Any) -> dict[str, Any]:
    counts = {"engines": 2, "lost_requests": 0, "restarts": 0, "handover_us_per_token": 1.0}
    return {"tokens": tokens, "cluster": {**counts, **cluster}}


def test_counts_are_summed_and_the_handover_is_a_mean_over_tokens() -> None:
    rows = [
        step(100, lost_requests=3, restarts=1),
        step(300, engines=3, handover_us_per_token=2.0),
    ]
    assert cluster_result(rows) == {
        "cluster": {
            "engines": 3,
            "lost_requests": 3,
            "restarts": 1,
            "handover_us_per_token": 1.75,
        }
    }


def test_a_run_without_a_cluster_has_no_entry() -> None:
    assert cluster_result([{"tokens": 5}]) == {}
