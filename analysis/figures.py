"""The figures of a comparison, and the style that all figures share. Its colours are colour-blind safe (Okabe-Ito)."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from analysis import read
from analysis.evaluations import draw_accuracy, evaluations

COLOURS = {
    "none": "#000000",
    "stock": "#8C8C8C",
    "das": "#0072B2",
    "das_unlimited": "#56B4E9",
    "ngram": "#E69F00",
    "suffix": "#009E73",
}
OTHER_COLOURS = ("#D55E00", "#CC79A7", "#F0E442")
STYLE = {
    "figure.dpi": 120,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def colour(name: str) -> str:
    """Return the colour of an arm, which is the same in every figure."""
    return COLOURS.get(name, OTHER_COLOURS[sum(map(ord, name)) % len(OTHER_COLOURS)])


@contextmanager
def figure(path: Path, panels: int = 1, size: tuple[float, float] | None = None) -> Iterator[Any]:
    """Make a figure in the common style, and save it to `path` when the block ends. Gives its axes, one or an array.

    panels: number of axes side by side. size: width and height in inches; None: depends on the number of panels.
    """
    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(1, panels, figsize=size or (5.6 * panels, 3.6), layout="constrained")
        yield axes
        drawing.savefig(path)
        plt.close(drawing)


def compare_figures(folder: Path, names: Sequence[str]) -> list[Path]:
    """Draw a comparison: rollout_and_reward.png, live_requests.png, and budget_ARM.png for each arm that drafted.
    Returns their paths.

    folder: the comparison's folder, which also receives the figures. names: the arms; the first is the baseline.
    If policies were evaluated, the first figure shows their accuracy too.
    """
    rows = {name: read.metrics(folder / "arms" / name) for name in names}
    _draw_time_and_reward(rows, folder / "rollout_and_reward.png")
    # The baseline's longest rollout shows best how few requests stay live at the end.
    step = max(rows[names[0]], key=lambda row: row["rollout_s"])["step"]
    with figure(folder / "live_requests.png", size=(6, 3.6)) as axes:
        for name in names:
            line = read.timeline(folder / "arms" / name, step)
            axes.step(line["step_time_s"], line["step_live"], where="post", color=colour(name), label=name)
            axes.plot(line["step_time_s"][-1], line["step_live"][-1], "o", color=colour(name), markersize=4)
        axes.set(
            xlabel="time in rollout (s)", ylabel="live requests", ylim=(0, None), title=f"Live requests, step {step}"
        )
        axes.legend()
    drawn = [folder / "rollout_and_reward.png", folder / "live_requests.png"]
    for name in names:
        if any(row["drafted"] for row in rows[name]):
            drawn.append(folder / f"budget_{name}.png")
            budget_figure(folder / "arms" / name, name, step, drawn[-1])
    return drawn


def _draw_time_and_reward(rows: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Draw rollout time, reward and, if policies were evaluated, accuracy by step. rows: arm -> rows of metrics."""
    evaluated = [name for name in rows if evaluations(rows[name])]
    width = 3 if evaluated else 2
    with figure(path, width, (5 * width, 3.6)) as (time_axes, reward_axes, *more):
        for order, (name, steps) in enumerate(rows.items()):
            numbers = [row["step"] for row in steps]
            time_axes.plot(numbers, [row["rollout_s"] for row in steps], color=colour(name), label=name)
            # Later arms are dashed and thinner, because equal curves would hide each other.
            reward_axes.plot(
                numbers,
                [row["reward"] for row in steps],
                color=colour(name),
                label=name,
                linewidth=max(1.0, 3.0 - 1.2 * order),
                linestyle="-" if order == 0 else (0, (4, 2 + order)),
            )
        for order, name in enumerate(evaluated):
            draw_accuracy(more[0], rows[name], colour(name), name, order)
        time_axes.set(xlabel="training step", ylabel="rollout time (s)", ylim=(0, None), title="Rollout time per step")
        reward_axes.set(xlabel="training step", ylabel="mean reward", ylim=(0, 1), title="Reward per step")
        time_axes.legend()
        reward_axes.legend()


def budget_figure(arm: Path, name: str, step: int, path: Path) -> None:
    """Draw one rollout pass by pass.

    Left: live requests, and draft tokens verified and accepted per request. Right: the time of each pass, measured and
    predicted by the budget's latency model. arm: the arm's folder. name: the arm's name. step: training step.
    """
    line = read.timeline(arm, step)
    live, tokens, emitted = (np.array(line[key], float) for key in ("step_live", "step_tokens", "step_emitted"))
    with figure(path, 2, (11, 3.6)) as (tokens_axes, time_axes):
        tokens_axes.step(line["step_time_s"], live, where="post", color=COLOURS["none"], label="live requests")
        tokens_axes.step(
            line["step_time_s"],
            (tokens - live) / live,
            where="post",
            color=colour(name),
            label="drafted tokens per request",
        )
        accepted = np.maximum(emitted - live, 0) / live
        tokens_axes.step(
            line["step_time_s"], accepted, where="post", color=OTHER_COLOURS[0], label="accepted tokens per request"
        )
        tokens_axes.set(
            xlabel="time in rollout (s)", ylim=(0, None), title=f"{name}: budget in the rollout of step {step}"
        )
        tokens_axes.legend()
        measured = np.array(line.get("pass_measured_s", []), float) * 1e3
        time_axes.plot(measured, ".", markersize=3, color=COLOURS["none"], label="measured")
        time_axes.plot(
            np.array(line.get("pass_predicted_s", []), float) * 1e3,
            color=colour(name),
            linewidth=1,
            label="predicted",
        )
        time_axes.set(
            xlabel="decode pass",
            ylabel="time of a pass (ms)",
            ylim=(0, None),
            title="Time of each pass, and the budget's prediction",
        )
        time_axes.legend()
