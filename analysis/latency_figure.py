"""Figure of task=calibrate."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from analysis.figures import STYLE
from das.budget.latency_forms import Drafting, Passes


def calibration_figure(passes: Passes, forms: dict[str, Any], path: Path) -> None:
    """Median time of a pass against its tokens, a line a number of live requests; dashed: the form `drafting`."""
    fitted = Drafting(**forms["drafting"]["coefficients"])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
        shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(np.unique(passes.live))))
        for shade, live in zip(shades, np.unique(passes.live), strict=True):
            own = passes[passes.live == live]
            tokens = np.unique(own.tokens)
            axes.plot(
                tokens,
                [1e3 * np.median(own.seconds[own.tokens == n]) for n in tokens],
                ".-",
                color=shade,
                label=f"{int(live)} live",
            )
            predicted = fitted.predict(np.full(len(tokens), live), tokens, np.zeros(len(tokens)))
            axes.plot(tokens, 1e3 * predicted, "--", color=shade, linewidth=0.8)
        axes.set(
            xlabel="tokens in the pass (live requests + drafted)",
            ylabel="time of a pass (ms), median",
            xscale="log",
            title=f"Decode pass; dashed: fit, {100 * forms['drafting']['error']:.0f} % off",
        )
        axes.legend(fontsize=7)
        figure.savefig(path)
        plt.close(figure)
