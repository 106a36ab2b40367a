"""The metrics of a training step: one table (metrics.yaml) for W&B, result.json, tables, panels and the docs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml


@dataclass(frozen=True)
class Metric:
    """A number of each training step, a column of metrics.jsonl. The head of metrics.yaml says what its fields mean."""

    name: str
    meaning: str
    unit: str = ""
    clock: bool = False
    wandb: str = ""
    result: bool = False
    overall: Sequence[str] = ()
    visits: bool = False
    logged: bool = True
    of: str = ""


_METRICS, SHOWN = yaml.safe_load_all((Path(__file__).parent / "metrics.yaml").open())  # SHOWN: where, and how
METRICS = tuple(Metric(name, **row) for name, row in _METRICS.items())


def summary(values: Sequence[float | None]) -> dict[str, Any]:
    """Return n, mean, sample standard deviation, min and max of the values of all steps that have one."""
    array = np.asarray([value for value in values if value is not None], float)
    if not len(array):
        return {"n": 0, **dict.fromkeys(("mean", "std", "min", "max"))}
    return {
        "n": len(array),
        "mean": float(array.mean()),
        "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0,
        "min": float(array.min()),
        "max": float(array.max()),
    }


def visits(rows: Sequence[Mapping[str, Any]], metric: str) -> dict[str, float | None]:
    """Return the means over the first and the last visit of all problems: the first epoch, and the last one that has as
    many steps. Other steps have other problems, so they say nothing of each other. Empty for a run of one epoch."""
    epochs: dict[int, list[float | None]] = {}
    for row in rows:
        epochs.setdefault(row.get("epoch", 1), []).append(row.get(metric))
    whole = [values for values in epochs.values() if len(values) == len(next(iter(epochs.values())))]
    if len(whole) < 2:
        return {}
    return {"first_visit": summary(whole[0])["mean"], "last_visit": summary(whole[-1])["mean"]}


def summarised(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarise an arm's metrics over its steps, those of METRICS that result.json has and that the rows have."""
    summaries: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        if metric.result and any(metric.name in row for row in rows):
            values = [row.get(metric.name, 0.0) for row in rows]
            summaries[metric.name] = summary(values) | (visits(rows, metric.name) if metric.visits else {})
        if metric.overall and all(name in row for row in rows for name in metric.overall):
            above, below = (sum(row[name] for row in rows) for name in metric.overall)
            summaries.setdefault(metric.name, {})["overall"] = above / below
    return summaries


def timeless(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the numbers that depend on the clock."""
    clock = {metric.name for metric in METRICS if metric.clock}
    return [
        {name: value for name, value in row.items() if not name.endswith("_s") and name not in clock} for row in rows
    ]


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
