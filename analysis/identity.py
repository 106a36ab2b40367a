"""What drafts must not change by one bit. The verdict while arms run, result.json and analysis.compare read it here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import evaluations
from analysis.metrics import SHOWN

EXACT: dict[str, str] = SHOWN["exact"]  # name in result.json -> field of a row of metrics.jsonl
OF_ROLLOUTS = ("completions", "rewards")  # of these, what an arm has that does not train (task.train_once)
FINAL = ("final_weights", "optimizer")  # digests that a run writes at its end
Rows = Sequence[Mapping[str, Any]]


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal. NaN equals NaN."""
    return bool(a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)))


def differing(checks: Mapping[str, Any]) -> list[str]:
    """Return which results differ. checks: an arm's entry `identical` of result.json."""
    return [what for what, same in checks.items() if what != "first_difference" and not same]


def first_differences(rows: Rows, others: Rows, once: bool = False) -> dict[str, int | None]:
    """Return name of a result -> the first step at which it differs between two runs, or None.

    The result `eval` is there only if policies were evaluated. once: one of them did not train (task.train_once).
    """
    found: dict[str, int | None] = {}
    for name in OF_ROLLOUTS if once else EXACT:
        field = EXACT[name]
        pairs = zip(rows, others, strict=True)
        found[name] = next((row["step"] for row, other in pairs if not equal(row[field], other[field])), None)
    if evaluations.evaluations(rows) or evaluations.evaluations(others):
        found["eval"] = evaluations.first_difference(rows, others)
    return found
