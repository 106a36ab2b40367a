"""EfficientRollout's two rules with the real drafter: the toggle turns drafting on within a rollout, the ladder adapts
the draft length from rollout to rollout."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.efficient_rollout_main import count, workloads
from analysis.sections.shared import percent

MARGIN = 1.05  # the toggle is on from this predicted speedup (paper)
Trace = dict[str, Any]


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Show when the toggle switched on in rollouts of unequal lengths, its predictions, and the ladder's lengths."""
    (run,) = runs.values()
    paper = published["er_adaptive"]["data"]["toggle_keeps_sd_off_for_pct_of_decoding_steps"]
    names = workloads(read.result(run))
    widest = names[-1]
    steps = sorted(row["step"] for row in read.metrics(run) if (row["workload"], row["arm"]) == (widest, "toggle"))
    traces = [read.timeline(run / widest / "toggle", step) for step in steps]
    # The last rollout is shown, because in the first one the rule knows neither times of passes nor tau.
    switched = [switch(trace) for trace in traces]
    lengths = {name: ladder(run, name) for name in names}
    accepted = {name: shares(run, name) for name in names}
    draw(traces[-1], lengths, folder / "toggle.png")
    later = switched[1:]
    tail_alone = all(point is not None and point[1] < count(widest) for point in later) if later else None
    return Section(
        title,
        f"30 million random weights; rollouts of {count(widest)} requests, each may be 0.95 times as long as the one "
        "before. The toggle's times come from the engine's own passes and draft passes. The picture shows the last "
        "rollout.",
        [
            Line(
                "share of passes before drafting begins, by rollout",
                "",
                f"{paper[0]} to {paper[1]} %",
                "",
                ", ".join("never on" if p is None else percent(p[0]) for p in switched),
            ),
            Line(
                "live requests when it begins",
                "",
                "",
                "37 to 42",
                ", ".join("-" if p is None else str(p[1]) for p in switched),
            ),
            *(
                Line(
                    f"ladder, {count(name)} live: draft length by rollout; accepted share",
                    claimed="7B: 5, 7, 9, 11",
                    engine=", ".join(map(str, lengths[name])) + "; " + comma_shares(accepted[name]),
                )
                for name in names
            ),
        ],
        "",
        ["toggle.png"],
        orderings=[
            Ordering(
                "the toggle is off while all requests are live, and on in the tail",
                tail_alone,
                "live requests when it begins, from the second rollout on: "
                + ", ".join("never" if p is None else str(p[1]) for p in later),
            ),
            Ordering(
                "once on, it stays on", all(map(stays_on, traces)), f"in {sum(map(stays_on, traces))} of {len(traces)}"
            ),
            Ordering(
                "the ladder climbs where at least 94 % were accepted in two rollouts, and nowhere else",
                all(follows_rule(lengths[name], accepted[name]) for name in names),
                "; ".join(f"{count(name)} live: {', '.join(map(str, lengths[name]))}" for name in names),
            ),
        ],
    )


def comma_shares(values: list[float]) -> str:
    """Return shares as text, with commas between them."""
    return ", ".join(f"{share:.2f}" for share in values)


def drafting(trace: Trace) -> np.ndarray:
    """Return for each pass whether most of three passes (itself and its neighbours) verified a draft; bool [passes].

    This ignores a single pass with drafts while the toggle is off (a trial), and one without drafts while it is on.
    """
    has_drafts = np.pad(np.array(trace["step_tokens"]) > np.array(trace["step_live"]), 1, mode="edge").astype(int)
    return np.asarray(has_drafts[:-2] + has_drafts[1:-1] + has_drafts[2:] >= 2)


def switch(trace: Trace) -> tuple[float, int] | None:
    """Return the share of passes before drafting begins, and the live requests then; None if drafting never begins."""
    on = drafting(trace)
    first = int(on.argmax())
    return (first / len(on), int(trace["step_live"][first])) if on.any() else None


def stays_on(trace: Trace) -> bool:
    """Return whether drafting, once begun, continues to the end of the rollout.

    Up to 5 % of the passes may have no drafts, because a request with one token left needs none.
    """
    on, emitted = drafting(trace), np.array(trace["step_emitted"])
    if not on.any():
        return True
    behind = on[int(on.argmax()) :]
    return bool(np.count_nonzero(~behind) <= len(emitted) * 0.05)


def ladder(run: Path, workload: str) -> list[int]:
    """Return the ladder's draft length (its rung) in each rollout of the budget policy `adaptive`; 0 without drafts."""
    lengths = []
    for row in read.metrics(run):
        if (row["workload"], row["arm"]) == (workload, "adaptive"):
            trace = read.timeline(run / workload / "adaptive", row["step"])
            live, tokens = np.array(trace["step_live"]), np.array(trace["step_tokens"])
            lengths.append(int(np.ceil(((tokens - live) / np.maximum(live, 1)).max(initial=0))))
    return lengths


def shares(run: Path, workload: str) -> list[float]:
    """Return accepted / drafted tokens of each rollout of the budget policy `adaptive`; nan without drafts."""
    found = [row for row in read.metrics(run) if (row["workload"], row["arm"]) == (workload, "adaptive")]
    return [row["accepted"] / row["drafted"] if row["drafted"] else float("nan") for row in found]


def follows_rule(lengths: list[int], accepted: list[float], up: float = 0.94) -> bool:
    """Return whether the ladder moved up exactly when two rollouts in a row on a rung had accepted a share `up` or
    more."""
    since = 0  # rollouts on this rung (with this draft length)
    for i in range(1, len(lengths)):
        since += 1
        climbed = lengths[i] > lengths[i - 1]
        may = since >= 2 and min(accepted[i - 1], accepted[i - 2]) >= up and lengths[i - 1] < 11
        if climbed != may:
            return False
        since = 0 if climbed else since
    return True


def draw(trace: Trace, lengths: Mapping[str, list[int]], path: Path) -> None:
    """Draw the live requests and drafts of a rollout, the toggle's predictions, and the ladder's lengths."""
    with figure(path, panels=3) as (live, predicted, rungs):
        on = drafting(trace)
        passes = np.arange(len(on))
        live.step(passes, trace["step_live"], where="post", color="black", label="live requests")
        live.fill_between(passes, 0, max(trace["step_live"]), where=on, color="#0072B2", alpha=0.2, label="drafting")
        live.set(xlabel="pass", ylabel="live requests", ylim=(0, None), title="Toggle over a rollout")
        live.legend()
        predicted.plot(trace["pass_speedup"], ".-", color="#0072B2", markersize=3)
        predicted.axhline(MARGIN, color="black", linewidth=1, linestyle="--")
        predicted.set(xlabel="pass", ylabel="predicted speedup", xlim=(0, len(on)), title="What the toggle predicts")
        colour = colours_of(list(lengths))
        for name, values in lengths.items():
            rungs.step(range(1, len(values) + 1), values, where="mid", color=colour[name], label=f"{count(name)} live")
        rungs.set(xlabel="rollout", ylabel="draft length", ylim=(0, 12), title="Ladder")
        rungs.legend()
