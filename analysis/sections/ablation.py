"""The ablations: settings side by side, in a table and a picture. Each setting that changes the generated text has its
own run and baseline."""

from typing import Any

from analysis.figures import colours_of
from analysis.identity import differing
from analysis.orderings import Ordering
from analysis.quantities import per, percent, total
from analysis.record import Record
from analysis.report import Section, Table
from analysis.sections.given import GREY, Given

HEADER = (
    *("setting", "rollout time / none", "from 2nd epoch", "tokens/pass", "drafted/pass", "accepted/drafted"),
    *("drafting, us per token", "reward, last visit", "identical to none"),
)


def ablation(given: Given) -> Section:
    """Each setting of an ablation."""
    settings = _settings(given)
    stock = {name: _of_stock(*of) for name, of in settings.items()}
    with_stock = any(stock.values())
    colors = colours_of(["none", *settings])
    with given.picture("settings.png", 2) as (time_axes, accepted_axes):
        for name, (run, arm) in settings.items():
            epochs = run.result["ratio_to_none"][arm]["rollout_s"]["by_epoch"]
            time_axes.plot(list(map(int, epochs)), list(epochs.values()), ".-", color=colors[name], label=name)
            given.plot_steps(accepted_axes, run[arm], "accepted", "passes", color=colors[name], linewidth=1)
        time_axes.axhline(1, color=GREY, linewidth=0.8)
        time_axes.set(title="Rollout time", xlabel="epoch", ylabel="rollout time / that of none", ylim=(0, None))
        time_axes.legend(fontsize=7)
        accepted_axes.set(title="Acceptance", xlabel="training step", ylabel="accepted tokens per pass")
        accepted_axes.set(ylim=(0, None))
    rows = []
    for name, of in settings.items():
        at = stock[name]
        rows.append([name, *_cells(*of), *([f"{at:.3f}" if at else ""] if with_stock else [])])
    same = [run.identical for run in given.runs.values()]
    return given.section(
        given.run.note if len(given.runs) == 1 else "",
        table=Table([*HEADER, *(["of stock"] if with_stock else [])], rows),
        orderings=[
            Ordering(
                "no setting changes the training by a single bit",
                all(same),
                f"{sum(same)} of {len(same)} runs are identical to none",
            )
        ],
    )


def _settings(given: Given) -> dict[str, tuple[Record, str]]:
    """Returns name -> run and arm: of one run the arm's name, of a run with one such arm its label, else both."""
    found: dict[str, tuple[Record, str]] = {}
    for label, run in given.runs.items():
        # Without the baseline and without unmodified vLLM.
        drafting = [arm for arm in run.result["ratio_to_none"] if arm in run.result["identical"]]
        for arm in drafting:
            of_run = label if len(drafting) == 1 else f"{label}, {arm}"
            found[arm if len(given.runs) == 1 else of_run] = (run, arm)
    return found


def _of_stock(run: Record, arm: str) -> Any:
    """Returns rollout time / that of unmodified vLLM; None if there was none."""
    ratio = run.result.get("ratio_to_stock", {}).get(arm)
    return ratio and ratio["rollout_s"]["overall"]


def _cells(run: Record, arm: str) -> list[str]:
    steps, ratio = run[arm], run.result["ratio_to_none"][arm]["rollout_s"]
    later = ratio["from_second_epoch"]
    return [
        f"{ratio['overall']:.3f}",
        f"{later:.3f}" if later is not None else "",
        f"{per(steps, 'tokens', 'passes'):.2f}",
        f"{per(steps, 'drafted', 'passes'):.2f}",
        percent(per(steps, "accepted", "drafted")) if total(steps, "drafted") else "-",
        f"{1e6 * per(steps, 'draft_s', 'tokens'):.1f}",
        f"{reward:.3f}" if (reward := run.result["arms"][arm]["reward"].get("last_visit")) is not None else "-",
        "NO" if differing(run.result["identical"][arm]) else "yes",
    ]
