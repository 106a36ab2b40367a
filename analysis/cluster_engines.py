"""Summarise the work that each engine of a cluster did in a run."""

from collections.abc import Mapping, Sequence
from typing import Any

SUMMED = ("lost_requests", "restarts")


def cluster_result(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry `cluster` of result.json, over the steps of all arms. Empty for a run without a cluster.

    rows: rows of metrics.jsonl. handover_us_per_token: processor time of the training process per response token.
    """
    steps = [row for row in rows if "cluster" in row]
    if not steps:
        return {}
    tokens = sum(row["tokens"] for row in steps)
    handover = sum(row["cluster"]["handover_us_per_token"] * row["tokens"] for row in steps)
    counts = {name: sum(row["cluster"][name] for row in steps) for name in SUMMED}
    engines = max(row["cluster"]["engines"] for row in steps)
    return {"cluster": {"engines": engines, **counts, "handover_us_per_token": handover / tokens}}
