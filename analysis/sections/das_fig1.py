"""DAS Fig 1: live requests over the time of one rollout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import policy_note, rows

PAPER_END = {"none": 220, "das": 110}  # ends of the paper's two curves on its time axis, which has no unit
PAPER_REQUESTS = 128  # live requests at the start of the paper's curves


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Compare live requests over time in the step in which the baseline made the most passes: its responses are
    longest.

    The axes are relative, because the paper gives no units.
    """
    (run,) = runs.values()
    step = max(rows(run, "none"), key=lambda row: row["decode_steps"])["step"]
    line = {name: read.timeline(run / "arms" / name, step) for name in ("none", "das")}
    end = {name: line[name]["step_time_s"][-1] for name in line}
    _draw(line, end["none"], published["das_fig1"]["data"], folder / "live_requests.png")
    half = {name: line[name]["step_time_s"][_first_below(line[name]["step_live"], 0.5)] / end["none"] for name in line}
    return Section(
        title,
        f"{policy_note(run)} Step {step}.",
        [
            Line(
                "rollout time with DAS / without",
                plotted=f"{PAPER_END['das'] / PAPER_END['none']:.2f}",
                engine=f"{end['das'] / end['none']:.2f}",
            ),
            Line(
                "time at which half the requests have ended, none / das",
                plotted="0.31 / 0.26",
                engine=f"{half['none']:.2f} / {half['das']:.2f}",
            ),
        ],
        figures=["live_requests.png"],
        orderings=[
            Ordering(
                "the last response ends earlier with DAS",
                end["das"] < end["none"],
                f"after {end['das']:.2f} s with DAS, {end['none']:.2f} s without",
                100 * (1 - PAPER_END["das"] / PAPER_END["none"]),
                100 * (1 - end["das"] / end["none"]),
                " % earlier",
            ),
            Ordering(
                "few requests are live for most of the time",
                half["none"] < 0.5,
                f"half the requests have ended after {half['none']:.0%} of the time",
                31,
                100 * half["none"],
                " % of the time",
            ),
        ],
    )


def _draw(line: Mapping[str, Mapping[str, Any]], baseline_end: float, paper: Mapping[str, Any], path: Path) -> None:
    """Draw the share of live requests by time, ours and the paper's. baseline_end: seconds that the baseline's rollout
    took; they are 1 on the time axis."""
    colour = colours_of(["none", "das"])
    with figure(path) as axes:
        for name in line:
            live = np.array(line[name]["step_live"], float)
            time = np.array(line[name]["step_time_s"]) / baseline_end
            axes.step(time, live / live[0], where="post", color=colour[name], label=name)
        for name, key, times in (("none", "verl", paper["time"]), ("das", "das", paper["das_time"])):
            axes.plot(
                np.array(times) / PAPER_END["none"],
                np.array(paper[key]) / PAPER_REQUESTS,
                ":",
                color=colour[name],
                label=f"{name} (paper)",
            )
        axes.set(
            xlabel="time / rollout time of none",
            ylabel="share of requests that are live",
            ylim=(0, None),
            title="Fig 1: live requests in one rollout",
        )
        axes.legend()


def _first_below(live: list[int], share: float) -> int:
    """Return the index of the first pass with at most this share of live requests; of the last pass if there is
    none."""
    return next((i for i, n in enumerate(live) if n <= share * live[0]), len(live) - 1)
