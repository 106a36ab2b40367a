"""Compare the rewards of trainings with different lags and seeds: `python -m analysis.lag_rewards
outputs/multirun/DATE`.

The folder holds runs of task=train that differ in trainer.lag and seed. The command prints a table and draws
lag_rewards.png.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from analysis import read
from analysis.figures import figure

Rewards = Mapping[int, np.ndarray]  # lag -> mean reward of each step, [seeds, steps]


def rewards_by_lag(folder: Path) -> dict[int, np.ndarray]:
    """Read the rewards of all runs below `folder`. Raises ValueError if runs with one lag differ in their numbers of
    steps."""
    found: dict[int, list[list[float]]] = defaultdict(list)
    for path in sorted(folder.rglob("metrics.jsonl")):
        found[read.config(path.parent)["trainer"]["lag"]].append([row["reward"] for row in read.metrics(path.parent)])
    return {lag: np.array(found[lag]) for lag in sorted(found)}


def table(rewards: Rewards) -> str:
    """Return a table with a row for each lag: last quarter's mean reward of each seed, and their mean and deviation."""
    lines = ["lag   reward of the last quarter, mean ± std over seeds   each seed"]
    for lag, rewards_S_T in rewards.items():
        last = rewards_S_T[:, -max(1, rewards_S_T.shape[1] // 4) :].mean(axis=1)
        spread = last.std(ddof=1) if len(last) > 1 else 0.0
        lines.append(f"{lag:3d}   {last.mean():.3f} ± {spread:.3f}   {' '.join(f'{seed:.3f}' for seed in last)}")
    return "\n".join(lines)


def draw(rewards: Rewards, path: Path, smooth: int = 4) -> None:
    """Draw the mean and the range over seeds. smooth: steps of the moving average."""
    with figure(path, size=(6, 3.6)) as axes:
        for lag, rewards_S_T in rewards.items():
            window = np.ones(smooth) / smooth
            curves_S_T = np.array([np.convolve(curve, window, "valid") for curve in rewards_S_T])
            steps = np.arange(smooth, rewards_S_T.shape[1] + 1)
            (line,) = axes.plot(steps, curves_S_T.mean(axis=0), label=f"lag {lag}")
            axes.fill_between(steps, curves_S_T.min(axis=0), curves_S_T.max(axis=0), color=line.get_color(), alpha=0.15)
        axes.set(xlabel="training step", ylabel=f"reward, mean of {smooth} steps")
        axes.legend()


def main(arguments: Sequence[str]) -> None:
    """Print the table and draw the figure of one folder."""
    if len(arguments) != 1:
        raise SystemExit("error: give one folder: python -m analysis.lag_rewards outputs/multirun/DATE")
    folder = Path(arguments[0])
    rewards = rewards_by_lag(folder)
    if not rewards:
        raise SystemExit(
            f"error: {folder} holds no run (metrics.jsonl): make some with python run.py -m trainer.lag=0,1"
        )
    print(table(rewards))
    draw(rewards, folder / "lag_rewards.png")


if __name__ == "__main__":
    main(sys.argv[1:])
