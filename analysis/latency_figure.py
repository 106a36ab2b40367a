"""Draw the figure of task=calibrate."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from analysis.figures import figure

Array = NDArray[np.float64]


def calibration_figure(
    live: Array, tokens: Array, seconds: Array, predicted: Array, relative_error: float, path: Path
) -> None:
    """Draw the median time of a pass against its tokens, with a line for each number of live requests. Dashed lines
    show the fitted form.

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
