"""Figures of replays."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def validation_figure(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path) -> None:
    """Measured and predicted rollout seconds of each arm's steps, against the line where they agree."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 4.4), layout="constrained")
    for name, (measured, predicted) in curves.items():
        axes.plot(measured, predicted, "o", markersize=4, alpha=0.7, label=name)
    most = max(max(m) for pair in curves.values() for m in pair) * 1.1
    axes.plot([0, most], [0, most], color="0.6", linewidth=1)
    axes.set(xlabel="measured rollout time (s)", ylabel="replayed rollout time (s)", title="A point a step")
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
