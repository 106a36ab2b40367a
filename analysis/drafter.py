"""Figure of task=bench_drafter."""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from analysis.figures import STYLE, colour

NAMES = {"das": "das", "arctic": "suffix"}  # colours are those of the arms


def bench_figure(result: dict[str, Any], path: Path) -> None:
    """Tokens per pass by epoch, reliability of the probabilities, cost and memory against history size."""
    with plt.rc_context(STYLE):
        figure, (epochs, calibration, cost) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
        for i, (trace, row) in enumerate(result["traces"].items()):
            style = ("-", "--", ":", "-.", (0, (1, 3)))[i % 5]
            for which in [w for w in NAMES if w in row]:
                y = row[which]["by_epoch"]
                epochs.plot(range(len(y)), y, color=colour(NAMES[which]), linestyle=style, label=f"{trace} {which}")
            points = [p for p in row["das"]["reliability"] if p[2] >= 100]
            calibration.plot([p[0] for p in points], [p[1] for p in points], linestyle=style, marker=".", label=trace)
        epochs.set(xlabel="group (epoch)", ylabel="tokens per pass", title="Drafts from history")
        epochs.legend(fontsize=6)
        calibration.plot([0, 1], [0, 1], color="#888888", linewidth=0.8)
        calibration.set(xlabel="estimated probability", ylabel="accepted", title="Reliability, das")
        calibration.legend(fontsize=6)
        if result["sizes"]:
            tokens = [row["tokens"] for row in result["sizes"]]
            units = {"query_us_per_request": "query, us a request", "bytes_per_token": "bytes a token"}
            units |= {"update_us_per_token": "update, us a token", "build_us_per_token": "build, us a token"}
            for key, label in units.items():
                cost.plot(tokens, [row[key] for row in result["sizes"]], marker=".", label=label)
            cost.set(xscale="log", yscale="log", xlabel="tokens indexed", title="Cost against history, das")
            cost.legend(fontsize=7, loc="center", bbox_to_anchor=(0.5, 0.25))
        figure.savefig(path)
        plt.close(figure)
