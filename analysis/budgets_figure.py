"""Draw the figure of task=bench_budgets."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis.figures import COLOURS, figure


def budgets_figure(result: dict[str, Any], path: Path) -> None:
    """Draw rollout times relative to no speculation: a panel for each workload, a bar for each budget policy.

    Black lines are the quartiles over rollouts. result: workload -> policy -> {ratio, quartiles}.
    """
    with figure(path, len(result), (3.4 * len(result), 3.6)) as panels:
        for panel, (name, measured) in zip(np.ravel(panels), result.items(), strict=True):
            order = sorted(measured, key=lambda label: -measured[label]["ratio"])
            ratios = [measured[label]["ratio"] for label in order]
            colours = [COLOURS["das"] if label.startswith("marginal") else COLOURS["stock"] for label in order]
            panel.barh(order, ratios, color=colours)
            for position, label in enumerate(order):
                panel.plot(measured[label]["quartiles"], [position, position], color="black", linewidth=1)
                panel.text(0.02, position, f"{measured[label]['ratio']:.3f}", va="center", fontsize=7, color="white")
            panel.axvline(1.0, color="black", linewidth=0.6)
            panel.set(title=name.replace("_", " "), xlabel="rollout time / that of none")
