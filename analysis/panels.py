"""Draw the panels (charts of metrics) that figures, the HTML page and W&B share. docs/reference.md explains the
metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

import matplotlib.pyplot as plt

from analysis import evaluations
from analysis.figures import COLOURS, OTHER_COLOURS, figure


@dataclass(frozen=True)
class Panel:
    """One chart of metrics over training steps.

    The first metric is a solid line. A second metric is dotted and named in the title.
    """

    title: str
    unit: str
    metrics: tuple[str, ...]


CURVES = (
    Panel("Reward", "mean reward", ("reward",)),
    Panel("Loss", "loss", ("loss",)),
    Panel("Mean response length (dotted: longest)", "tokens", ("length_mean", "length_max")),
    Panel("Rollout time", "s per step", ("rollout_s",)),
    Panel("Tokens per pass", "tokens per target pass", ("tokens_per_pass",)),
    Panel("Accepted tokens (dotted: drafted)", "tokens per step", ("accepted", "drafted")),
)
BY_CLASS = tuple(
    Panel(
        f"Accepted, {length} responses (dotted: drafted)",
        "tokens per step",
        (f"accepted_{length}", f"drafted_{length}"),
    )
    for length in ("short", "medium", "long")
)
PANELS = (
    *CURVES,
    *BY_CLASS,
    Panel("Gradient norm", "norm", ("grad_norm",)),
    Panel("Whole step", "s per step", ("step_s",)),
    Panel(
        "Engine against trainer (dotted: rollout)",
        "largest log-prob difference",
        ("sync_error", "sampling_logp_difference"),
    ),
)
ACCURACY = Panel(  # drawn only if policies were evaluated
    "Held-out pass@1 (dotted: pass@k, largest k)", "share of problems", ("eval/pass_at_1", "eval/pass_at_k")
)
OKABE_ITO = (*COLOURS.values(), *OTHER_COLOURS)


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
        for panel, chart in zip(panels, axes.flat, strict=False):
            for order, (name, rows) in enumerate(runs.items()):
                for rank, metric in enumerate(panel.metrics):
                    points = _points(rows, metric)
                    if not points:
                        continue
                    chart.plot(
                        *zip(*points, strict=True),
                        color=OKABE_ITO[order % len(OKABE_ITO)],
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
