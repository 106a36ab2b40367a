"""The figures of comparisons and single tasks, the panels of pages, and the style that all figures share. Its colours
are colour-blind safe (Okabe-Ito).

`python -m analysis.figures` draws all figures of docs/ from the measurements in docs/benchmarks/data/, each with its
command, commit and date.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from analysis import read
from analysis.metrics import SHOWN, curves, evaluations
from das.general.files import replacing

matplotlib.use("Agg")


COLOURS = {
    "none": "#000000",
    "stock": "#8C8C8C",
    "das": "#0072B2",
    "das_unlimited": "#56B4E9",
    "ngram": "#E69F00",
    "suffix": "#009E73",
}
OTHER_COLOURS = ("#D55E00", "#CC79A7", "#B8A900")  # the last is darker than Okabe and Ito's yellow, to be read on white
STYLE = {
    "figure.dpi": 120,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


SMOOTH = 4  # steps of a moving mean


def colour(name: str) -> str:
    """Return the colour of an arm, which is the same in every figure."""
    return COLOURS.get(name, OTHER_COLOURS[sum(map(ord, name)) % len(OTHER_COLOURS)])


def colours_of(names: Sequence[str]) -> dict[str, str]:
    """Return a colour for each name: an arm's own, and for other names the colours that no arm of the figure has, in
    order."""
    reserved = [COLOURS["none"], COLOURS["stock"]]
    others = [c for arm, c in COLOURS.items() if arm not in names and c not in reserved]
    free = itertools.cycle([*others, *OTHER_COLOURS, *reserved])
    return {name: COLOURS[name] if name in COLOURS else next(free) for name in names}


def style(name: str, order: int) -> dict[str, Any]:
    """Return the options of an arm's curve among others that may be equal: later arms are dashed and thinner, because
    they would hide each other."""
    dashes = "-" if order == 0 else (0, (4, 2 + order))
    return {"color": colour(name), "linewidth": max(1.0, 3.0 - 1.2 * order), "linestyle": dashes}


@contextmanager
def figure(
    to: Path | BinaryIO | TextIO,
    panels: int = 1,
    size: tuple[float, float] | None = None,
    rows: int = 1,
    form: str = "png",
) -> Iterator[Any]:
    """Make a figure in the common style, and save it when the block ends. Gives its axes, one or an array.

    to: a file, or a stream, of text for svg. panels: number of axes side by side. size: width and height in inches;
    None: depends on the number of panels. form: png or svg.
    """
    with plt.rc_context(STYLE):
        drawing, axes = plt.subplots(rows, panels, figsize=size or (5.6 * panels, 3.6), layout="constrained")
        yield axes
        with replacing(to) if isinstance(to, Path) else nullcontext(to) as file:
            drawing.savefig(file, format=form)
        plt.close(drawing)


def compare_figures(folder: Path, names: Sequence[str]) -> list[Path]:
    """Draw a comparison: rollout_and_reward.png, live_requests.png, and budget_ARM.png for each arm that drafted.
    Returns their paths.

    folder: the comparison's folder, which also receives the figures. names: the arms; the first is the baseline.
    If policies were evaluated, the first figure shows their accuracy too.
    """
    rows = {name: read.metrics(folder / "arms" / name) for name in names}
    draw_time_and_reward(rows, folder / "rollout_and_reward.png")
    # The baseline's longest rollout shows best how few requests stay live at the end.
    step = max(rows[names[0]], key=lambda row: row["rollout_s"])["step"]
    timelines = {name: read.timeline(folder / "arms" / name, step) for name in names}
    lines = {name: (line["step_time_s"], line["step_live"]) for name, line in timelines.items()}
    draw_live_requests(lines, step, folder / "live_requests.png")
    drawn = [folder / "rollout_and_reward.png", folder / "live_requests.png"]
    for name in names:
        if any(row["drafted"] for row in rows[name]):
            drawn.append(folder / f"budget_{name}.png")
            budget_figure(folder / "arms" / name, name, step, drawn[-1])
    return drawn


def shown_arms(names: Sequence[str]) -> list[str]:
    """Return the arms whose times a figure shows, three at most: the baseline, stock, and das or else the last arm."""
    best = "das" if "das" in names else names[-1]
    return [name for name in names if name in (names[0], "stock", best)]


def smoothed(values: Sequence[float]) -> np.ndarray:
    """Return the mean of each value and those up to SMOOTH - 1 before it."""
    return np.array([np.mean(values[max(0, end - SMOOTH) : end]) for end in range(1, len(values) + 1)])


def draw_time_and_reward(rows: Mapping[str, Sequence[dict[str, Any]]], path: Path) -> None:
    """Draw rollout time by step, reward by the clock and, if policies were evaluated, accuracy by step. The clock of an
    arm that does not train counts its rollouts. rows: arm -> rows of metrics.

    The area between the baseline and the drafting arm is the time that drafts save.
    """
    evaluated = [name for name in rows if evaluations(rows[name])]
    width = 3 if evaluated else 2
    names = shown_arms(list(rows))
    with figure(path, width, (5.5 * width, 4)) as (time_axes, reward_axes, *more):
        means = {name: smoothed([row["rollout_s"] for row in rows[name]]) for name in names}
        numbers = [row["step"] for row in rows[names[0]]]
        for name in names:
            time_axes.plot(numbers, means[name], color=colour(name), label=name, linewidth=2)
        if len(names) > 1:
            slow, fast = (sum(row["rollout_s"] for row in rows[name]) for name in (names[0], names[-1]))
            saved = f"{1 - fast / slow:.0%} saved" if fast < slow else f"{fast / slow - 1:.0%} lost"
            area = {"color": colour(names[-1]), "alpha": 0.18, "label": saved}
            time_axes.fill_between(numbers, means[names[0]], means[names[-1]], **area)
        for order, (name, steps) in enumerate((name, rows[name]) for name in names):
            rewarded = [row["reward"] is not None for row in steps]
            minutes = np.cumsum([row.get("step_s", row["rollout_s"]) for row in steps]) / 60
            rewards = smoothed([row["reward"] for row in steps if row["reward"] is not None])
            total = round(60 * float(minutes[-1]))
            ended = f"{name}, {total // 60}:{total % 60:02d}" if total >= 60 else f"{name}, {total} s"
            reward_axes.plot(minutes[rewarded], rewards, label=ended, **style(name, order))
            reward_axes.plot(minutes[rewarded][-1:], rewards[-1:], "o", color=colour(name), markersize=5)
        for order, name in enumerate(evaluated):
            draw_accuracy(more[0], rows[name], name, order)
        title = f"Rollout time, mean of {SMOOTH} steps"
        time_axes.set(xlabel="training step", ylabel="seconds per step", ylim=(0, None), title=title)
        reward_axes.set(xlabel="minutes", ylabel="reward", ylim=(0, 1), title=f"Reward, mean of {SMOOTH} steps")
        for axes in (time_axes, reward_axes):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4)  # below, where no curve is


def draw_accuracy(axes: Axes, rows: Sequence[dict[str, Any]], name: str, order: int) -> None:
    """Draw an arm's pass@1 with its interval, and as a dotted line its pass@k of the largest k. order: the arm's
    index."""
    found = curves(rows)
    largest = max(found["pass_at_k"], key=int)
    axes.plot(found["step"], found["pass_at_1"], label=name, **style(name, order))
    low, high = zip(*found["interval"]["1"], strict=True)
    axes.fill_between(found["step"], low, high, color=colour(name), alpha=0.1, linewidth=0)
    title = "Held-out pass@1 (95 %)"
    if largest != "1":
        axes.plot(found["step"], found["pass_at_k"][largest], color=colour(name), linewidth=1, linestyle=(0, (1, 2)))
        title += f"; dotted: pass@{largest}"
    axes.set(xlabel="training step", ylabel="share of problems", ylim=(0, 1), title=title)


def draw_live_requests(lines: Mapping[str, tuple[Sequence[float], Sequence[int]]], step: int, path: Path) -> None:
    """Draw how many requests are live over the time of a rollout. lines: arm -> (seconds, live requests). step: the
    training step of the rollout."""
    with figure(path, size=(7, 3.6)) as axes:
        for name, (seconds, live) in lines.items():
            axes.step(seconds, live, where="post", color=colour(name), label=name)
            axes.plot(seconds[-1], live[-1], "o", color=colour(name), markersize=4)
        title = f"Live requests in the rollout of step {step}"
        axes.set(xlabel="time in rollout (s)", ylabel="live requests", ylim=(0, None), title=title)
        axes.legend()


def budget_figure(arm: Path, name: str, step: int, path: Path) -> None:
    """Draw one rollout pass by pass.

    Left: live requests, and draft tokens verified and accepted per request. Right: the time of each pass, measured and
    predicted by the budget's latency model. arm: the arm's folder. name: the arm's name. step: training step.
    """
    line = read.timeline(arm, step)
    live, tokens, emitted = (np.array(line[key], float) for key in ("step_live", "step_tokens", "step_emitted"))
    measured, predicted = (np.array(line.get(key, []), float) * 1e3 for key in ("pass_measured_s", "pass_predicted_s"))
    counts = {
        "live requests": (live, COLOURS["none"]),
        "drafted tokens per request": ((tokens - live) / live, colour(name)),
        "accepted tokens per request": (np.maximum(emitted - live, 0) / live, OTHER_COLOURS[0]),
    }
    with figure(path, 2, (11, 3.6)) as (tokens_axes, time_axes):
        for label, (values, color) in counts.items():
            tokens_axes.step(line["step_time_s"], values, where="post", color=color, label=label)
        tokens_axes.set(xlabel="time in rollout (s)", title=f"{name}: budget in the rollout of step {step}")
        time_axes.plot(measured, ".", markersize=3, color=COLOURS["none"], label="measured")
        time_axes.plot(predicted, color=colour(name), linewidth=1, label="predicted")
        time_axes.set(xlabel="decode pass", ylabel="time of a pass (ms)")
        time_axes.set(title="Time of each pass, and the budget's prediction")
        for axes in (tokens_axes, time_axes):
            axes.set(ylim=(0, None))
            axes.legend()


def evaluate_figure(result: Mapping[str, Any], path: Path) -> None:
    """Draw, for task=evaluate, pass@k with its interval, and how many responses to each problem are right. result: the
    content of result.json."""
    ks = [int(k) for k in result["pass_at_k"]]
    means, low, high = (
        np.array([each[key] for each in result["pass_at_k"].values()]) for key in ("mean", "low", "high")
    )
    with figure(path, 2, (10, 3.6)) as (curve, histogram):
        curve.errorbar(ks, means, [means - low, high - means], color=COLOURS["das"], marker="o", capsize=4)
        curve.set_xscale("log", base=2)
        curve.set_xticks(ks, [str(k) for k in ks])
        curve.set(xlabel="k", ylabel="pass@k", ylim=(0, 1), title="At least one of k responses is right (95 %)")
        counts = list(result["correct"].values())
        samples = result["samples"]
        histogram.hist(counts, bins=[right - 0.5 for right in range(samples + 2)], color=COLOURS["das"])
        histogram.set(xlabel=f"right responses of {samples}", ylabel="problems", title=f"{len(counts)} problems")


@dataclass(frozen=True)
class Panel:
    """One chart of metrics over training steps.

    The first metric is a solid line. A second metric is dotted and named in the title.
    """

    title: str
    unit: str
    metrics: tuple[str, ...]


PANELS = tuple(Panel(title, unit, tuple(metrics)) for title, unit, *metrics in SHOWN["panels"])
ACCURACY = Panel(  # drawn only if policies were evaluated
    "Held-out pass@1 (dotted: pass@k, largest k)", "share of problems", ("eval/pass_at_1", "eval/pass_at_k")
)


def draw_panels(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], panels: Sequence[Panel], to: BinaryIO | TextIO, form: str = "png"
) -> None:
    """Draw the panels, three in a row, with all runs overlaid in each. Adds accuracy if a run has evaluations.

    runs: name -> rows of metrics.jsonl. to: a stream, of text for svg. form: png or svg.
    Missing values are left out. Later runs are dashed and thinner, because equal curves would hide each other.
    """
    if any(evaluations(rows) for rows in runs.values()):
        panels = [*panels, ACCURACY]
    num_rows = -(-len(panels) // 3)
    small = plt.rc_context({"axes.titlesize": 10, "axes.labelsize": 9})
    with small, figure(to, 3, (12, 2.9 * num_rows), num_rows, form) as axes:
        colours = colours_of(list(runs))
        for panel, chart in zip(panels, axes.flat, strict=False):
            for order, (name, rows) in enumerate(runs.items()):
                for rank, metric in enumerate(panel.metrics):
                    if found := points(rows, metric):
                        own: dict[str, Any] = {"linewidth": 1.0, "linestyle": (0, (1, 2))} if rank else {"label": name}
                        own |= {"color": colours[name], "marker": "." if len(found) == 1 else None}
                        chart.plot(*zip(*found, strict=True), **style(name, order) | own)
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


def points(rows: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """Return (step, value) pairs of a metric; of eval/pass_at_1, and of eval/pass_at_k for the largest k of all
    evaluations."""
    if not metric.startswith("eval/"):
        return [(row["step"], row[metric]) for row in rows if isinstance(row.get(metric), int | float)]
    found = curves(rows)
    largest = max(found["pass_at_k"], key=int, default="")
    values = found["pass_at_1"] if metric == "eval/pass_at_1" else found["pass_at_k"].get(largest, [])
    return list(zip(found["step"], values, strict=True))


# ---- of the docs ----

DOCS = Path(__file__).parents[1] / "docs"
# Names as W&B has them: transformers puts train/ before each of TRL's.
IN_WANDB = tuple(
    Panel(f"train/{name}", unit, (f"train/{name}",))
    for name, unit in (("das/rollout_s", "s"), ("das/tokens_per_pass", "tokens"), ("reward", "mean reward"))
)


def main(to: Path = DOCS) -> None:
    """Draw rollout_and_reward.png, live_requests.png and wandb_panel.png into the folder `to`."""
    data = DOCS / "benchmarks" / "data"
    kept = json.loads((data / "default_experiment.json").read_text())
    draw_time_and_reward(kept["rows"], to / "rollout_and_reward.png")
    lines = {name: (line["time_s"], line["live"]) for name, line in kept["live"].items()}
    draw_live_requests(lines, kept["live_step"], to / "live_requests.png")
    with replacing(to / "wandb_panel.png") as file:
        draw_panels(json.loads((data / "wandb_panel.json").read_text())["runs"], IN_WANDB, file)


if __name__ == "__main__":
    main()
