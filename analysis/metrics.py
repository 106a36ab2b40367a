"""The metrics of a training step: one table (metrics.yaml) for W&B's summaries, result.json and the docs.

`python -m analysis.metrics` prints the table for docs/reference.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from das.side_output import keep_printing


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
    logged: bool = True
    of: str = ""


METRICS = tuple(
    Metric(name, **row) for name, row in yaml.safe_load((Path(__file__).parent / "metrics.yaml").open()).items()
)


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


def summarised(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Summarise an arm's metrics over its steps, those of METRICS that result.json has and that the rows have."""
    summaries: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        if metric.result and any(metric.name in row for row in rows):
            summaries[metric.name] = summary([row.get(metric.name, 0.0) for row in rows])
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


def table() -> str:
    """Return the metrics in Markdown, for docs/reference.md."""
    lines = ["| name | unit | meaning |", "|---|---|---|"]
    for metric in METRICS:
        of = f" (of {metric.of})" if metric.of else ""
        lines.append(f"| `{metric.name}` | {metric.unit} | {metric.meaning}{of} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    keep_printing()
    print(table(), end="")
