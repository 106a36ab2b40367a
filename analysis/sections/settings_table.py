"""Ablations: settings side by side, in a table and a figure.

Each setting that changes the generated text has its own run and baseline.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import read
from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.report import Section, Table
from analysis.sections.shared import accepted_per_pass, is_identical, percent, policy_note, rows, total

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


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Make a table with a row for each drafting arm of each run. title: names what the experiment varied."""
    first = next(iter(runs.values()))
    settings = [
        (setting_name(label if len(runs) > 1 else "", run, arm), run, arm)
        for label, run in runs.items()
        for arm in drafting_arms(run)
    ]
    _draw(settings, folder / "settings.png")
    same = [is_identical(run) for run in runs.values()]
    return Section(
        title,
        policy_note(first) if len(runs) == 1 else "",
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


def settings_rows(settings: Sequence[tuple[str, Path, str]]) -> Table:
    """Return the table of all settings, with a ratio to the arm stock if that was run. settings: (name, run, arm)."""
    of_stock = {name: read.result(run).get("ratio_to_stock", {}).get(arm) for name, run, arm in settings}
    if not any(of_stock.values()):
        return Table(HEADER, [table_row(*setting) for setting in settings])
    cells = {name: f"{ratio['rollout_s']['overall']:.3f}" if ratio else "" for name, ratio in of_stock.items()}
    return Table([*HEADER, "of stock"], [[*table_row(*setting), cells[setting[0]]] for setting in settings])


def _draw(settings: Sequence[tuple[str, Path, str]], path: Path) -> None:
    """Draw, left: rollout time by epoch. Right: accepted tokens by step. settings: (name, run, arm)."""
    colour = colours_of(["none", *(name for name, _, _ in settings)])
    with figure(path, panels=2) as (left, right):
        for name, run, arm in settings:
            by_epoch = rollout_ratio(run, arm)["by_epoch"]
            steps = rows(run, arm)
            left.plot([int(e) for e in by_epoch], list(by_epoch.values()), ".-", color=colour[name], label=name)
            right.plot(
                [r["step"] for r in steps], [accepted_per_pass([r]) for r in steps], color=colour[name], linewidth=1
            )
        left.axhline(1, color="#8C8C8C", linewidth=0.8)
        left.set(xlabel="epoch", ylabel="rollout time / that of none", ylim=(0, None), title="Rollout time")
        left.legend(fontsize=7)
        right.set(xlabel="training step", ylabel="accepted tokens per pass", ylim=(0, None), title="Acceptance")


def drafting_arms(run: Path) -> list[str]:
    """Return the arms of a comparison, without the baseline and without unmodified vLLM."""
    result = read.result(run)
    return [arm for arm in result["ratio_to_none"] if arm in result["identical"]]


def rollout_ratio(run: Path, arm: str) -> dict[str, Any]:
    """Return an arm's rollout time divided by the baseline's: overall, from_second_epoch, by_epoch, per_step."""
    ratio: dict[str, Any] = read.result(run)["ratio_to_none"][arm]["rollout_s"]
    return ratio


def setting_name(label: str, run: Path, arm: str) -> str:
    """Return the name of a setting, "LABEL, ARM". It is "LABEL" if the run has one drafting arm, "ARM" without a label.

    label: the run's label, "" if the experiment has only one run.
    """
    if not label:
        return arm
    return label if len(drafting_arms(run)) == 1 else f"{label}, {arm}"


def table_row(name: str, run: Path, arm: str) -> list[str]:
    """Return the cells of one setting's row, for the columns of HEADER."""
    steps, ratio, result = rows(run, arm), rollout_ratio(run, arm), read.result(run)
    from_second_epoch = ratio["from_second_epoch"]
    num_drafted = total(steps, "drafted")
    return [
        name,
        f"{ratio['overall']:.3f}",
        "" if from_second_epoch is None else f"{from_second_epoch:.3f}",
        f"{1 + accepted_per_pass(steps):.2f}",
        f"{num_drafted / total(steps, 'passes'):.2f}",
        percent(total(steps, "accepted") / num_drafted) if num_drafted else "-",
        f"{1e6 * total(steps, 'draft_s') / total(steps, 'tokens'):.1f}",
        f"{result['arms'][arm]['reward']['last_quarter']:.3f}",
        identity_cell(result, arm),
    ]


def identity_cell(result: Mapping[str, Any], arm: str) -> str:
    """Return in words whether an arm's results equal the baseline's, bit for bit."""
    equal = (equal for what, equal in result["identical"][arm].items() if what != "first_difference")
    return "yes" if all(equal) else "NO"
