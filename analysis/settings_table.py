"""Ablations: settings side by side, in a table and a figure.

Each setting that changes the generated text has its own run and baseline.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.quantities import ACCEPTED, over, percent, total
from analysis.record import Record
from analysis.report import Section, Table

Setting = tuple[str, Record, str]  # name, run, arm

HEADER = (
    "setting",
    "rollout time / none",
    "from 2nd epoch",
    "tokens/pass",
    "drafted/pass",
    "accepted/drafted",
    "drafting, us per token",
    "reward, last quarter",
    "identical to none",
)


def section(title: str, runs: Mapping[str, Record], folder: Path) -> Section:
    """Make a table with a row for each drafting arm of each run. title: names what the experiment varied."""
    settings = [
        (setting_name(label if len(runs) > 1 else "", run, arm), run, arm)
        for label, run in runs.items()
        for arm in drafting_arms(run)
    ]
    _draw(settings, folder / "settings.png")
    same = [run.identical for run in runs.values()]
    return Section(
        title,
        next(iter(runs.values())).note if len(runs) == 1 else "",
        table=settings_rows(settings),
        figures=["settings.png"],
        orderings=[
            Ordering(
                "no setting changes the training by a single bit",
                all(same),
                f"{sum(same)} of {len(same)} runs are identical to none",
            )
        ],
    )


def settings_rows(settings: Sequence[Setting]) -> Table:
    """Return the table of all settings, with a ratio to the arm stock if that was run."""
    of_stock = {name: run.result.get("ratio_to_stock", {}).get(arm) for name, run, arm in settings}
    if not any(of_stock.values()):
        return Table(HEADER, [table_row(*setting) for setting in settings])
    cells = {name: f"{ratio['rollout_s']['overall']:.3f}" if ratio else "" for name, ratio in of_stock.items()}
    return Table([*HEADER, "of stock"], [[*table_row(*setting), cells[setting[0]]] for setting in settings])


def _draw(settings: Sequence[Setting], path: Path) -> None:
    """Draw, left: rollout time by epoch. Right: accepted tokens by step."""
    colour = colours_of(["none", *(name for name, _, _ in settings)])
    with figure(path, panels=2) as (left, right):
        for name, run, arm in settings:
            by_epoch = rollout_ratio(run, arm)["by_epoch"]
            steps = [(row["step"], row["accepted"] / row["passes"]) for row in run[arm]]
            left.plot([int(e) for e in by_epoch], list(by_epoch.values()), ".-", color=colour[name], label=name)
            right.plot(*zip(*steps, strict=True), color=colour[name], linewidth=1)
        left.axhline(1, color="#8C8C8C", linewidth=0.8)
        left.set(xlabel="epoch", ylabel="rollout time / that of none", ylim=(0, None), title="Rollout time")
        left.legend(fontsize=7)
        right.set(xlabel="training step", ylabel="accepted tokens per pass", ylim=(0, None), title="Acceptance")


def drafting_arms(run: Record) -> list[str]:
    """Return the arms of a comparison, without the baseline and without unmodified vLLM."""
    return [arm for arm in run.result["ratio_to_none"] if arm in run.result["identical"]]


def rollout_ratio(run: Record, arm: str) -> dict[str, Any]:
    """Return an arm's rollout time divided by the baseline's: overall, from_second_epoch, by_epoch, per_step."""
    ratio: dict[str, Any] = run.result["ratio_to_none"][arm]["rollout_s"]
    return ratio


def setting_name(label: str, run: Record, arm: str) -> str:
    """Return the name of a setting, "LABEL, ARM". It is "LABEL" if the run has one drafting arm, "ARM" without a label.

    label: the run's label, "" if the experiment has only one run.
    """
    if not label:
        return arm
    return label if len(drafting_arms(run)) == 1 else f"{label}, {arm}"


def table_row(name: str, run: Record, arm: str) -> list[str]:
    """Return the cells of one setting's row, for the columns of HEADER."""
    steps, ratio = run[arm], rollout_ratio(run, arm)
    from_second_epoch = ratio["from_second_epoch"]
    return [
        name,
        f"{ratio['overall']:.3f}",
        "" if from_second_epoch is None else f"{from_second_epoch:.3f}",
        f"{1 + over(steps, ACCEPTED):.2f}",
        f"{over(steps, 'drafted / passes'):.2f}",
        percent(over(steps, "accepted / drafted")) if total(steps, "drafted") else "-",
        f"{over(steps, '1e6 * draft_s / tokens'):.1f}",
        f"{run.result['arms'][arm]['reward']['last_quarter']:.3f}",
        identity_cell(run.result, arm),
    ]


def identity_cell(result: Mapping[str, Any], arm: str) -> str:
    """Return in words whether an arm's results equal the baseline's, bit for bit."""
    equal = (equal for what, equal in result["identical"][arm].items() if what != "first_difference")
    return "yes" if all(equal) else "NO"
