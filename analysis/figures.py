"""Figures of a comparison. One style, colour-blind safe (Okabe-Ito)."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from analysis import read

COLOURS = {
    "none": "#000000",
    "das": "#0072B2",
    "das_unlimited": "#56B4E9",
    "ngram": "#E69F00",
    "suffix": "#009E73",
}
SPARE = ("#D55E00", "#CC79A7", "#F0E442")
STYLE = {
    "figure.dpi": 120,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}


def colour(name: str) -> str:
    """The arm's colour, the same in every figure."""
    return COLOURS.get(name, SPARE[sum(map(ord, name)) % len(SPARE)])


def compare_figures(folder: Path, names: Sequence[str]) -> None:
    """Write rollout_and_reward.png and live_requests.png into `folder`."""
    rows = {name: read.metrics(folder / "arms" / name) for name in names}
    with plt.rc_context(STYLE):
        figure, (time_axes, reward_axes) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        for order, name in enumerate(names):
            steps = [row["step"] for row in rows[name]]
            time_axes.plot(steps, [row["rollout_s"] for row in rows[name]], color=colour(name), label=name)
            # Curves that coincide would hide each other: later arms are dashed and thinner.
            reward_axes.plot(
                steps,
                [row["reward"] for row in rows[name]],
                color=colour(name),
                label=name,
                linewidth=max(1.0, 3.0 - 1.2 * order),
                linestyle="-" if order == 0 else (0, (4, 2 + order)),
            )
        time_axes.set(xlabel="training step", ylabel="rollout time (s)", ylim=(0, None), title="Rollout time per step")
        reward_axes.set(xlabel="training step", ylabel="mean reward", ylim=(0, 1), title="Reward per step")
        time_axes.legend()
        reward_axes.legend()
        figure.savefig(folder / "rollout_and_reward.png")
        plt.close(figure)

        # The step where the baseline took longest: there the tail shows best.
        step = max(rows[names[0]], key=lambda row: row["rollout_s"])["step"]
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        for name in names:
            line = read.timeline(folder / "arms" / name, step)
            axes.step(line["step_time_s"], line["step_live"], where="post", color=colour(name), label=name)
            axes.plot(line["step_time_s"][-1], line["step_live"][-1], "o", color=colour(name), markersize=4)
        axes.set(
            xlabel="time in rollout (s)", ylabel="live requests", ylim=(0, None), title=f"Live requests, step {step}"
        )
        axes.legend()
        figure.savefig(folder / "live_requests.png")
        plt.close(figure)
