"""All engines over one rollout: how many live requests each had when, and when engines joined, died and drained.

It reads rows of engines.jsonl: {"step", "engine", "time_s", "live", "event"}. A row says how many requests the engine
has from then on; event is "joined", "draining", "left", "lost" (and why), or what else changed `live`. An engine takes
part from its first row until it leaves or is lost, or until the rollout ends.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from analysis.figures import STYLE

Rows = Sequence[Mapping[str, Any]]

BINS = 600  # points in time that are drawn
MARKS = {
    "joined": ("^", "#009E73"),
    "draining": ("v", "#E69F00"),
    "left": ("s", "#E69F00"),
    "lost": ("x", "#D55E00"),
}


def longest_rollout(folder: Path) -> Rows:
    """The rows of the step whose rollout took longest. folder: a run's, with engines.jsonl."""
    rows = [json.loads(line) for line in (folder / "engines.jsonl").read_text().splitlines()]
    longest = max(rows, key=lambda row: row["time_s"])
    return [row for row in rows if row["step"] == longest["step"]]


def kind(row: Mapping[str, Any]) -> str:
    """What happened, without the reason behind a colon."""
    return str(row["event"]).partition(":")[0]


def gone(row: Mapping[str, Any]) -> bool:
    """Does the engine take part no more from this row on?"""
    return kind(row) in ("left", "lost")


def live_by_engine(rows: Rows, times: np.ndarray) -> np.ndarray:
    """Live requests [engines, times], in the order of the engines' numbers; NaN while an engine takes no part."""
    numbers = sorted({row["engine"] for row in rows})
    live = np.full((len(numbers), len(times)), np.nan)
    for at, number in enumerate(numbers):
        own = sorted((row for row in rows if row["engine"] == number), key=lambda row: row["time_s"])
        counts = np.array([np.nan, *(np.nan if gone(row) else row["live"] for row in own)])
        live[at] = counts[np.searchsorted([row["time_s"] for row in own], times, side="right")]
    return live


def idle_share(rows: Rows) -> float:
    """Share of the engines' time without a live request, from joining until they are gone or the rollout ends."""
    end = max(row["time_s"] for row in rows)
    idle = there = 0.0
    last: dict[int, Mapping[str, Any]] = {}

    def count(before: Mapping[str, Any], until: float) -> None:
        nonlocal idle, there
        if not gone(before):
            there += until - before["time_s"]
            idle += (until - before["time_s"]) * (before["live"] == 0)

    for row in sorted(rows, key=lambda row: row["time_s"]):
        if row["engine"] in last:
            count(last[row["engine"]], row["time_s"])
        last[row["engine"]] = row
    for row in last.values():
        count(row, end)
    return idle / there if there else 0.0


def timeline_figure(rows: Rows, path: Path) -> None:
    """Draw a line of colour for each engine, with marks where something happened to it, and sums over all engines."""
    end = max(row["time_s"] for row in rows)
    times = (np.arange(BINS) + 0.5) * end / BINS
    live = live_by_engine(rows, times)
    place = {number: at for at, number in enumerate(sorted({row["engine"] for row in rows}))}
    with plt.rc_context(STYLE | {"axes.grid": False}):
        figure, (top, below) = plt.subplots(
            2, 1, figsize=(9, 6), height_ratios=(3, 1), sharex=True, layout="constrained"
        )
        image = top.imshow(
            live, aspect="auto", interpolation="nearest", extent=(0, end, len(live) - 0.5, -0.5), cmap="viridis", vmin=0
        )
        figure.colorbar(image, ax=top, label="live requests")
        for event, (marker, colour) in MARKS.items():
            # Those that are there at the start need no mark.
            marked = [(r["time_s"], place[r["engine"]]) for r in rows if kind(r) == event and r["time_s"] > 0.01 * end]
            if marked:
                top.scatter(*zip(*marked, strict=True), marker=marker, color=colour, s=22, label=event, zorder=3)
                top.legend(loc="upper right", frameon=True)
        top.set(
            ylabel="engine", title=f"Live requests of each engine; engines idle {idle_share(rows):.1%} of their time"
        )
        taking_part = np.maximum(1, (~np.isnan(live)).sum(axis=0))
        below.plot(times, np.nansum(live, axis=0), color="#0072B2")
        below.set(xlabel="time in rollout (s)", ylabel="live requests, all", ylim=(0, None), xlim=(0, end))
        idle = below.twinx()
        idle.plot(times, 100 * (live == 0).sum(axis=0) / taking_part, color="#D55E00")
        idle.set(ylabel="idle engines (%)", ylim=(0, 100))
        below.yaxis.label.set_color("#0072B2")
        idle.yaxis.label.set_color("#D55E00")
        figure.savefig(path)
        plt.close(figure)
