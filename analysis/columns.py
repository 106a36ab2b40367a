"""The columns of tables about arms and runs: which metric, and what a cell shows of it (`tables` in metrics.yaml)."""

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from analysis.metrics import METRICS, SHOWN, summary, visits

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


def of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the numbers of all METRICS that rows have. Rows without a number do not count."""
    numbers: dict[str, dict[str, Any]] = {}
    for metric in METRICS:
        values = [row[metric.name] for row in rows if _is_number(row.get(metric.name))]
        found = summary(values) if values else {}
        if values and metric.visits:
            found |= visits(rows, metric.name)
        both = [row for row in rows if metric.overall and all(_is_number(row.get(name)) for name in metric.overall)]
        if both:
            above, below = (sum(row[name] for row in both) for name in metric.overall)
            found["overall"] = above / below if below else None
        numbers[metric.name] = found
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
