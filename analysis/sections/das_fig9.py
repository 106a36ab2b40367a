"""DAS Fig 9: mean and greatest length of each problem's responses, in every epoch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import percent, policy_note, rows


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Make the section about response lengths. Its figure has one point for each problem and epoch."""
    (run,) = runs.values()
    lengths: dict[tuple[int, str], list[int]] = {}
    for row in rows(run, "none"):
        for response in read.rollout(run / "arms" / "none", row["step"]):
            lengths.setdefault((row["epoch"], response["problem_id"]), []).append(len(response["response_ids"]))
    mean = np.array([np.mean(values) for values in lengths.values()])
    longest = np.array([max(values) for values in lengths.values()])
    cap = read.config(run)["trainer"]["max_completion_length"]
    with figure(folder / "lengths.png") as axes:
        shown = axes.scatter(mean, longest, c=[epoch for epoch, _ in lengths], s=14, cmap="cividis")
        axes.figure.colorbar(shown, label="epoch")
        axes.plot([0, longest.max()], [0, longest.max()], color="#8C8C8C", linewidth=0.8)
        axes.set(
            xlabel="mean length (tokens)",
            ylabel="longest response (tokens)",
            title="Fig 9: response lengths of each problem and epoch",
        )
    spread = longest / mean
    low, high = published["das_fig9"]["data"]["mean_range"]
    return Section(
        title,
        f"{policy_note(run)} One point for each problem and epoch, {len(mean)} in all.",
        [
            Line(
                "mean length, range",
                plotted=f"{low}-{high} tokens",
                engine=f"{mean.min():.0f}-{mean.max():.0f} tokens",
            ),
            Line("longest / mean length, median and maximum", engine=f"{np.median(spread):.1f}, {spread.max():.1f}"),
            Line(
                "groups with a response at the length cap",
                plotted="many, even for means below 1k of 16k",
                engine=percent(float(np.mean(longest >= cap))),
            ),
        ],
        "Most searches of the small policy end after a few attempts, and a few go on to the length cap.",
        ["lengths.png"],
        orderings=[
            Ordering(
                "a problem's longest response is far longer than its mean (at least 1.5 times for half of them)",
                bool(np.median(spread) > 1.5),
                f"{np.median(spread):.2f} times as long in the median",
            ),
        ],
    )
