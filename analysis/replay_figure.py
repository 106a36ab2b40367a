"""Draw the figure of task=replay."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from das.files import replacing


def validation_figure(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path) -> None:
    """Draw each step's measured and replayed rollout time as a point, and the line where both agree.

    curves: arm -> (measured seconds, replayed seconds), one value per step.
    """
    import matplotlib  # imported here, because the import takes a second and few callers draw

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 4.4), layout="constrained")
    for name, (measured, predicted) in curves.items():
        axes.plot(measured, predicted, "o", markersize=4, alpha=0.7, label=name)
    limit = max(max(seconds) for pair in curves.values() for seconds in pair) * 1.1
    axes.plot([0, limit], [0, limit], color="0.6", linewidth=1)
    axes.set(
        xlabel="measured rollout time (s)",
        ylabel="replayed rollout time (s)",
        title="Replayed against measured, one point per step",
    )
    axes.legend()
    with replacing(path) as file:
        figure.savefig(file)
    plt.close(figure)
