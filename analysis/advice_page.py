"""Write the page of task=advise, as one self-contained HTML file."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from analysis import page
from analysis.figures import COLOURS, figure
from analysis.page import Part

HEADER = ("drafts", "rollout (s)", "change", "range of change", "step (s)", "change", "tokens per pass")


def write(
    path: Path,
    answers: Sequence[str],
    facts: Sequence[str],
    arms: Mapping[str, Mapping[str, float]],
    curve: Sequence[tuple[int, float, float]],
    timelines: Mapping[str, Mapping[str, Any]],
    scale: float,
) -> None:
    """Write the page.

    answers: the line of advice, and the two answers. facts: lines about the simulation. arms: name -> its row of `arms`
    in result.json. curve: (live requests, expected speedup, speedup if drafts cost more). timelines: arm -> time_s (the
    end of each pass, in seconds) and live (requests in it). scale: the number of requests that each simulated request
    stands for.
    """
    rows = [
        [
            name,
            f"{row['rollout_s']:.1f}",
            f"{row['rollout_change']:+.1%}",
            span(row).lstrip(", "),
            f"{row['step_s']:.1f}",
            f"{row['step_change']:+.1%}",
            f"{row['tokens_per_pass']:.2f}",
        ]
        for name, row in arms.items()
    ]
    notes = [
        "The range is the change if drafted tokens cost 30 % less or 30 % more than the times of passes say. It does "
        "not cover the choice of sampled problems.",
        "suffix-like is this project's drafter at suffix decoding's settings.",
        "A step is the rollout and the rest of the training step, which speculation does not change.",
    ]
    parts: list[Part] = [("list", facts), ("table", (HEADER, *rows)), *(("text", note) for note in notes)]
    parts += [_picture(_bars, arms), _picture(_live_requests, timelines, scale), _picture(_speedup, curve)]
    page.write(path, "Will speculation pay for these rollouts?", answers, parts, width=60)


def span(row: Mapping[str, float]) -> str:
    """Return the range of an arm's change of time as ", LOW to HIGH"; "" if the cost of its drafts was not varied."""
    if row["low_s"] == row["high_s"]:
        return ""
    return f", {row['low_change']:+.1%} to {row['high_change']:+.1%}"


def _picture(draw: Callable[..., None], *given: Any) -> Part:
    """Return what `draw` draws on axes, as a picture of a page."""
    png = io.BytesIO()
    with figure(png, size=(8, 3.4)) as axes:
        draw(axes, *given)
        title = axes.get_title()
    return page.picture(png.getvalue(), title)


def _bars(axes: Axes, arms: Mapping[str, Mapping[str, float]]) -> None:
    axes.barh(list(arms), [row["rollout_s"] for row in arms.values()], color=COLOURS["das"])
    for name, row in arms.items():
        if row["low_s"] != row["high_s"]:
            axes.plot([row["low_s"], row["high_s"]], [name, name], "|-", color="black")
    axes.invert_yaxis()
    axes.set(xlabel="rollout time (s)", title="Expected rollout time and its range")


def _live_requests(axes: Axes, timelines: Mapping[str, Mapping[str, Any]], scale: float) -> None:
    for name, line in timelines.items():
        axes.step(line["time_s"], line["live"] * scale, where="post", label=name)
    axes.set(
        xlabel="time in rollout (s)",
        ylabel="live requests per engine",
        title="Live requests in the last simulated step",
        ylim=(0, None),
    )
    axes.legend()


def _speedup(axes: Axes, curve: Sequence[tuple[int, float, float]]) -> None:
    live = [point[0] for point in curve]
    axes.plot(live, [point[1] for point in curve], "o-", label="expected")
    axes.plot(live, [point[2] for point in curve], "o--", label="if drafts are dearer")
    axes.axhline(1, color="0.6", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(live[::2], [str(n) for n in live[::2]])
    axes.minorticks_off()
    axes.set(
        xlabel="live requests per engine",
        ylabel="speedup of decoding",
        title="Speedup of decoding at the best draft limit",
    )
    axes.legend()
