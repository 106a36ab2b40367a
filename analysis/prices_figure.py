"""The figure of task=bench_prices."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from analysis.figures import STYLE


def prices_figure(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Left: the rollout time of each curve over that of none, against the oracle's. Right: the shares of the oracle's
    saving, sorted. A colour is a kind of curve. rows: of the task's result.
    """
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
        for number, kind in enumerate(dict.fromkeys(row["kind"] for row in rows)):
            chosen = [row for row in rows if row["kind"] == kind]
            left.plot(
                [row["oracle"] for row in chosen], [row["ratio"] for row in chosen], ".", color=f"C{number}", label=kind
            )
            shares = np.sort([row["share"] for row in chosen if row["share"] is not None])
            if len(shares):
                right.plot(np.arange(1, len(shares) + 1) / len(shares), shares, color=f"C{number}", label=kind)
        left.plot([0, 1], [0, 1], color="black", linewidth=0.6)
        left.axhline(1.03, color="black", linewidth=0.6, linestyle=":")
        left.set(xlabel="oracle: rollout time / that of none", ylabel="budget: rollout time / that of none")
        right.axhline(0.9, color="black", linewidth=0.6, linestyle=":")
        right.set(xlabel="share of the curves", ylabel="share of the oracle's saving", ylim=(-0.1, 1.1))
        left.legend()
        figure.savefig(path)
        plt.close(figure)
