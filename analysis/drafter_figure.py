"""Draw the figure of task=bench_drafter."""

from pathlib import Path
from typing import Any

from analysis.figures import colour, figure

BELOW: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.15), "fontsize": 9}  # where no curve is
ARMS = {"das": "das", "arctic": "suffix"}  # drafter -> the arm whose colour it has


def drafter_figure(result: dict[str, Any], path: Path) -> None:
    """Draw tokens per pass by epoch, the reliability of the drafter's probabilities, and its cost by history size.

    result: result.json of the task, with `traces` (a row for each trace) and `sizes` (a row for each history size).
    """
    with figure(path, 3, (14, 5.2)) as (epochs, calibration, cost):
        for i, (trace, row) in enumerate(result["traces"].items()):
            style = ("-", "--", ":", "-.", (0, (1, 3)))[i % 5]
            for drafter in [name for name in ARMS if name in row]:
                y = row[drafter]["by_epoch"]
                epochs.plot(range(len(y)), y, color=colour(ARMS[drafter]), linestyle=style, label=f"{trace} {drafter}")
            # (estimated probability, accepted share, number of tokens); shares of fewer than 100 tokens are noise.
            bins = [each for each in row["das"]["reliability"] if each[2] >= 100]
            calibration.plot(
                [b[0] for b in bins],
                [b[1] for b in bins],
                color=colour("das"),
                linestyle=style,
                marker=".",
                label=trace,
            )
        epochs.set(xlabel="group (epoch)", ylabel="tokens per pass", title="Drafts from history")
        epochs.legend(**BELOW)
        calibration.plot([0, 1], [0, 1], color="#888888", linewidth=0.8)
        calibration.set(xlabel="estimated probability", ylabel="accepted share", title="Reliability of das")
        calibration.legend(**BELOW)
        if result["sizes"]:
            tokens = [row["tokens"] for row in result["sizes"]]
            units = {"query_us_per_request": "query, us per request", "bytes_per_token": "memory, bytes per token"}
            units |= {"update_us_per_token": "update, us per token", "build_us_per_token": "build, us per token"}
            for key, label in units.items():
                cost.plot(tokens, [row[key] for row in result["sizes"]], marker=".", label=label)
            cost.set(xscale="log", yscale="log", xlabel="tokens indexed", title="Cost of das by history size")
            cost.legend(**BELOW)
