"""The metrics of a training step: one table (metrics.yaml) for W&B, result.json, tables, panels and the docs; columns
of tables about arms and runs; and the accuracy on held-out problems, the entry `eval` of rows of metrics.jsonl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
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


def of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the numbers of all METRICS that rows have. Rows without a number do not count."""
    numbers: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        found: dict[str, Any] = {}
        if any(metric.name in row for row in rows):
            missing = 0.0 if metric.result else None  # what result.json has is a sum, and 0 in rows without it
            values = [row.get(metric.name, missing) for row in rows]
            found = summary([value for value in values if isinstance(value, int | float)])
            found |= visits(rows, metric.name) if metric.visits else {}
        both = [row for row in rows if all(row.get(name) is not None for name in metric.overall)]
        if metric.overall and both:
            above, below = (sum(row[name] for row in both) for name in metric.overall)
            found["overall"] = above / below if below else None
        numbers[metric.name] = found
    return numbers


def summarised(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return those numbers of an arm's rows that result.json has."""
    kept = {metric.name for metric in METRICS if metric.result or metric.overall}
    return {name: numbers for name, numbers in of_rows(rows).items() if numbers and name in kept}


SUMMED = ("lost_requests", "restarts")


def cluster_result(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry `cluster` of result.json, over the steps of all arms. Empty for a run without a cluster.

    rows: rows of metrics.jsonl. handover_us_per_token: processor time of the training process to receive a token.
    """
    steps = [row for row in rows if "cluster" in row]
    if not steps:
        return {}
    tokens = sum(row["tokens"] for row in steps)
    handover = sum(row["cluster"]["handover_us_per_token"] * row["tokens"] for row in steps)
    counts = {name: sum(row["cluster"][name] for row in steps) for name in SUMMED}
    engines = max(row["cluster"]["engines"] for row in steps)
    return {"cluster": {"engines": engines, **counts, "handover_us_per_token": handover / tokens}}


Numbers = Mapping[str, Mapping[str, Any]]  # metric -> name in a cell -> number, text, or None where there is none


class _Cells(Formatter):
    """Fills in a cell. A number that is None, or missing, is shown as "-", and a text as it is."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key))

    def format_field(self, value: Any, format_spec: str) -> str:
        if value is None:
            return "-"
        return value if isinstance(value, str) else format(value, format_spec)


def columns(table: str, lines: Sequence[Numbers]) -> list[list[str]]:
    """Return the header and the cells of every line. A column is left out if no line has a number for it.

    table: its name in metrics.yaml. lines: the numbers of each arm or run.
    """
    shown = {
        header: (metric, cell)
        for header, (metric, cell) in SHOWN["tables"][table].items()
        if any(name in line.get(metric, {}) for line in lines for _, name, *_ in Formatter().parse(cell) if name)
    }
    cells = [[_Cells().format(cell, **line.get(metric, {})) for metric, cell in shown.values()] for line in lines]
    return [list(shown), *cells]


def of_arm(result: Mapping[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """Return an arm's numbers: those of result.json, and `total`, `minutes`, and for times the ratios to the baseline
    and to stock. The arm itself has the ratio "1". An arm that did not train has no time of a whole step.

    result: the result of compare_arms.
    """
    numbers = {metric: dict(known) for metric, known in result["arms"][name].items()}
    for known in numbers.values():
        if known.get("n"):
            known["total"] = known["mean"] * known["n"]
    ratios = result["ratio_to_none"].get(name)
    for metric in ("rollout_s", "step_s"):
        times = numbers.setdefault(metric, {})
        if ratios is None:
            times |= {"ratio": "1", "from_second_epoch": "1"}
        elif metric in ratios:
            overall = ratios[metric]["overall"]
            times |= {"ratio": overall, "saved": 1 - overall if overall else None}
            times["from_second_epoch"] = ratios[metric].get("from_second_epoch")
        if "total" in times and (ratios is None or metric in ratios):
            times["minutes"] = times["total"] / 60
        if "ratio_to_stock" in result:
            to_stock = result["ratio_to_stock"].get(name)
            times["of_stock"] = "1" if to_stock is None else to_stock.get(metric, {}).get("overall")
    return numbers


# ---- accuracy on held-out problems ----

EXACT = ("step", "pass_at_k", "completions_digest")  # fields that drafts must not change by one bit


def evaluations(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the evaluations of a run, by step."""
    return [evaluation for row in rows for evaluation in row.get("eval", [])]


def exact_evaluations(row: Mapping[str, Any]) -> list[list[Any]]:
    """Return what drafts must not change of each evaluation in a row."""
    return [[each[key] for key in EXACT] for each in row.get("eval", [])]


def curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return name -> list with an item for each evaluation: step, pass_at_1, and pass_at_k with its interval for each k
    (text, smallest first) that all evaluations have. A resumed run may have changed the setting eval.k."""
    found = evaluations(rows)
    ks = [k for k in found[0]["pass_at_k"] if all(k in each["pass_at_k"] for each in found)] if found else []
    by_k = {key: {k: [each[key][k] for each in found] for k in ks} for key in ("pass_at_k", "interval")}
    step, first, seconds = ([each[key] for each in found] for key in ("step", "pass_at_1", "eval_s"))
    return {"step": step, "pass_at_1": first, **by_k, "eval_s": seconds}
