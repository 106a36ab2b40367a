"""Draw the panels (charts of metrics) that figures and HTML pages share. metrics.yaml lists them, docs/reference.md
explains the metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

import matplotlib.pyplot as plt

from analysis import evaluations
from analysis.figures import colours_of, figure
from analysis.metrics import SHOWN


@dataclass(frozen=True)
class Panel:
    """One chart of metrics over training steps.

    The first metric is a solid line. A second metric is dotted and named in the title.
    """

    title: str
    unit: str
    metrics: tuple[str, ...]


CURVES, _MORE = (
    tuple(Panel(title, unit, tuple(metrics)) for title, unit, *metrics in SHOWN["panels"][name])
    for name in ("curves", "more")
)
PANELS = (*CURVES, *_MORE)
ACCURACY = Panel(  # drawn only if policies were evaluated
    "Held-out pass@1 (dotted: pass@k, largest k)", "share of problems", ("eval/pass_at_1", "eval/pass_at_k")
)


def draw(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], panels: Sequence[Panel], to: BinaryIO | TextIO, form: str = "png"
) -> None:
    """Draw the panels, three in a row, with all runs overlaid in each. Adds accuracy if a run has evaluations.

    runs: name -> rows of metrics.jsonl. to: a stream, of text for svg. form: png or svg.
    Missing values are left out. Later runs are dashed and thinner, because equal curves would hide each other.
    """
    if any(evaluations.evaluations(rows) for rows in runs.values()):
        panels = [*panels, ACCURACY]
    num_rows = -(-len(panels) // 3)
    small = plt.rc_context({"axes.titlesize": 10, "axes.labelsize": 9})
    with small, figure(to, 3, (12, 2.9 * num_rows), num_rows, form) as axes:
        colours = colours_of(list(runs))
        for panel, chart in zip(panels, axes.flat, strict=False):
            for order, (name, rows) in enumerate(runs.items()):
                for rank, metric in enumerate(panel.metrics):
                    points = _points(rows, metric)
                    if not points:
                        continue
                    chart.plot(
                        *zip(*points, strict=True),
                        color=colours[name],
                        linewidth=max(1.0, 3.0 - order) if rank == 0 else 1.0,
                        linestyle=(0, (1, 2)) if rank else "-" if order == 0 else (0, (4, 1 + order)),
                        marker="." if len(points) == 1 else None,
                        label=name if rank == 0 else None,
                    )
            chart.set(title=panel.title, ylabel=panel.unit, xlabel="training step")
            values = [value for line in chart.lines for value in line.get_ydata()]
            if values and min(values) >= 0:
                chart.set_ylim(bottom=0)
            if not values:
                chart.text(0.5, 0.5, "not recorded", ha="center", va="center", transform=chart.transAxes)
        for chart in axes.flat[len(panels) :]:
            chart.set_axis_off()
        handles, labels = axes.flat[0].get_legend_handles_labels()
        axes.flat[0].figure.legend(handles, labels, loc="outside upper center", ncols=min(6, max(1, len(labels))))


def _points(rows: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    if metric.startswith(evaluations.PREFIX):
        return evaluations.points(rows, metric)
    return [(row["step"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)]
