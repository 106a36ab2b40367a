"""Rollout time and reward of training with and without DAS, beside the paper's curves (Figs 10 to 13)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Line, Section
from analysis.sections.shared import (
    Rows,
    arm_names,
    identity_text,
    is_identical,
    percent,
    policy_note,
    rows,
    total,
)

PLOTTED = {"none": "verl", "das": "das", "das_unlimited": "das_unlimited"}  # arm -> its name in published.json


@dataclass(frozen=True)
class PaperClaims:
    """The paper's claims about a training with and without DAS."""

    last_step: int  # the paper's steps 1..last_step are compared
    reduction: str  # reduction of rollout time, as the paper's text claims
    rewards: str  # mean rewards, "without / with DAS"


def reduction(arm_rows: Rows, other_rows: Rows) -> float:
    """Return the share of rollout time that an arm saves against another: 1 - time / the other's time."""
    return 1 - total(arm_rows, "rollout_s") / total(other_rows, "rollout_s")


def plotted_reduction(paper: Mapping[str, Any], arm: str, other: str, last: int) -> float | None:
    """Return the share of rollout time that `arm` saves against `other` in the paper's curves over steps 1..last; None
    if a curve is shorter."""
    arm_seconds, other_seconds = (paper["arms"][PLOTTED[name]]["seconds"][:last] for name in (arm, other))
    if not len(arm_seconds) == len(other_seconds) == last:
        return None
    return float(1 - sum(arm_seconds) / sum(other_seconds))


def reduction_lines(
    run: Path, paper: Mapping[str, Any], last: int, claimed: str, arm: str = "das", other: str = "none"
) -> list[Line]:
    """Return lines with the reduction of rollout time: ours over all steps and from epoch 2 on, the paper's over steps
    1..last.

    claimed: the reduction that the paper's text claims.
    """
    arm_rows, other_rows = rows(run, arm), rows(run, other)
    plotted = plotted_reduction(paper, arm, other, last)
    lines = [
        Line(
            f"{arm} against {other}: reduction of rollout time",
            plotted="" if plotted is None else percent(plotted),
            claimed=claimed,
            engine=percent(reduction(arm_rows, other_rows)),
        )
    ]
    if max(row["epoch"] for row in arm_rows):
        later = reduction([r for r in arm_rows if r["epoch"]], [r for r in other_rows if r["epoch"]])
        lines.append(Line("the same from the second epoch on", engine=percent(later)))
    if other != "stock" and "stock" in arm_names(run):
        against_stock = reduction(arm_rows, rows(run, "stock"))
        lines.append(Line(f"{arm} against stock: reduction of rollout time", engine=percent(against_stock)))
    return lines


def draw(run: Path, names: Sequence[str], paper: Mapping[str, Any], path: Path, title: str) -> None:
    """Draw the rollout time by step, ours and the paper's, and our rewards, whose curves must be equal.

    names: the arms; the first is the baseline.
    """
    colour = colours_of(names)
    with figure(path, panels=3) as (ours, theirs, reward):
        for order, name in enumerate(names):
            arm_rows = rows(run, name)
            steps = [row["step"] for row in arm_rows]
            ours.plot(steps, [row["rollout_s"] for row in arm_rows], color=colour[name], label=name)
            reward.plot(
                steps,
                [row["reward"] for row in arm_rows],
                color=colour[name],
                label=name,
                linewidth=max(1.0, 3.0 - order),
                linestyle="-" if order == 0 else (0, (4, 2 + order)),
            )
            curve = paper["arms"].get(PLOTTED[name])
            if curve:
                theirs.plot(curve["step"], curve["seconds"], color=colour[name], label=name)
        ours.set(xlabel="training step", ylabel="rollout time (s)", ylim=(0, None), title=f"{title}: ours")
        theirs.set(xlabel="training step", ylabel="rollout time (s)", ylim=(0, None), title=f"{title}: the paper's")
        reward.set(xlabel="training step", ylabel="mean reward", title="Rewards, ours")
        for axes in (ours, theirs, reward):
            axes.legend()


def same_training(run: Path) -> Ordering:
    """Return the paper's claim about equal reward curves, in the strict form of equal bits, with its verdict."""
    return Ordering("training is the same with and without speculation", is_identical(run), identity_text(run))


def saves_time(
    claim: str, run: Path, paper: Mapping[str, Any], last: int, arm: str = "das", other: str = "none"
) -> Ordering:
    """Return the claim that the rollouts of `arm` take less time than those of `other`, with the paper's reduction over
    its steps 1..last and ours over all steps."""
    ours, plotted = reduction(rows(run, arm), rows(run, other)), plotted_reduction(paper, arm, other, last)
    in_percent = None if plotted is None else 100 * plotted
    return Ordering(claim, ours > 0, every_step(run, arm, other), in_percent, 100 * ours, " % less")


def every_step(run: Path, arm: str = "das", other: str = "none") -> str:
    """Return in words in how many steps the rollout of `arm` was shorter than that of `other`."""
    pairs = list(zip(rows(run, arm), rows(run, other), strict=True))
    return f"shorter in {sum(a['rollout_s'] < b['rollout_s'] for a, b in pairs)} of {len(pairs)} steps"


def das_against_none(
    title: str, run: Path, paper: Mapping[str, Any], claims: PaperClaims, differs: str, path: Path
) -> Section:
    """Make the section of a training with and without DAS. path: the figure's file."""
    draw(run, ["none", "das"], paper, path, title.split(":")[0])
    mean = [total(rows(run, name), "reward") / len(rows(run, name)) for name in ("none", "das")]
    return Section(
        title,
        policy_note(run),
        [
            *reduction_lines(run, paper, claims.last_step, claims.reduction),
            Line("mean reward, none / das", plotted=claims.rewards, engine=f"{mean[0]:.4f} / {mean[1]:.4f}"),
        ],
        differs,
        [path.name],
        orderings=[
            saves_time("DAS needs less rollout time than no speculation", run, paper, claims.last_step),
            same_training(run),
        ],
    )
