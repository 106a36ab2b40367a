"""Draw the figure of task=evaluate: pass@k with its interval, and how many responses to each problem are right."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.figures import COLOURS, figure


def evaluate_figure(result: Mapping[str, Any], path: Path) -> None:
    """Draw the figure of this module into `path`. result: the content of result.json."""
    ks = [int(k) for k in result["pass_at_k"]]
    values = list(result["pass_at_k"].values())
    with figure(path, 2, (10, 3.6)) as (curve, histogram):
        means = [value["mean"] for value in values]
        below = [value["mean"] - value["low"] for value in values]
        above = [value["high"] - value["mean"] for value in values]
        curve.errorbar(ks, means, [below, above], color=COLOURS["das"], marker="o", capsize=4)
        curve.set_xscale("log", base=2)
        curve.set_xticks(ks, [str(k) for k in ks])
        curve.set(xlabel="k", ylabel="pass@k", ylim=(0, 1), title="At least one of k responses is right (95 %)")
        counts = list(result["correct"].values())
        samples = result["samples"]
        histogram.hist(counts, bins=[right - 0.5 for right in range(samples + 2)], color=COLOURS["das"])
        histogram.set(xlabel=f"right responses of {samples}", ylabel="problems", title=f"{len(counts)} problems")
