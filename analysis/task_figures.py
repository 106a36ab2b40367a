"""The figures that single tasks draw from their results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from analysis.figures import COLOURS, figure

Array = NDArray[np.float64]


def evaluate_figure(result: Mapping[str, Any], path: Path) -> None:
    """Draw, for task=evaluate, pass@k with its interval, and how many responses to each problem are right. result: the
    content of result.json."""
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


def calibration_figure(
    live: Array, tokens: Array, seconds: Array, predicted: Array, relative_error: float, path: Path
) -> None:
    """Draw, for task=calibrate, the median time of a pass against its tokens, with a line for each number of live
    requests. Dashed lines show the fitted form.

    live, tokens, seconds, predicted: [passes], the live requests and tokens of each pass, and its measured and fitted
    seconds. Passes of equal `live` and `tokens` have one predicted time. relative_error: the fit's mean relative error.
    """
    with figure(path, size=(6.5, 4)) as axes:
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(np.unique(live))))
        for shade, live_requests in zip(shades, np.unique(live), strict=True):
            sizes = np.unique(tokens[live == live_requests])
            of_size = [(live == live_requests) & (tokens == size) for size in sizes]
            medians = [1e3 * np.median(seconds[passes]) for passes in of_size]
            fitted = [1e3 * predicted[passes][0] for passes in of_size]
            axes.plot(sizes, medians, ".-", color=shade, label=f"{int(live_requests)} live")
            axes.plot(sizes, fitted, "--", color=shade, linewidth=0.8)
        axes.set(
            xlabel="tokens in the pass (live requests + drafted)",
            ylabel="median time of a pass (ms)",
            xscale="log",
            title=f"Decode passes; dashed: fit, mean error {100 * relative_error:.0f} %",
        )
        axes.legend(fontsize=7)
