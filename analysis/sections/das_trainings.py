"""The figures of the DAS paper over a training: acceptance, rollout time and rewards, by step; and the ablations."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from analysis.figures import colours_of, style
from analysis.identity import differing
from analysis.report import Section, Table, percent
from analysis.sections.given import GREY, PLOTTED, Given, Record, arrow, named, numbers, per, total


def das_fig4(given: Given) -> Section:
    """Accepted tokens over training."""
    run, paper = given.run, given.paper("das_fig4")
    last, eagle = max(row["epoch"] for row in run["das"]), paper["eagle_static"]

    def accepted(arm: str, epoch: int) -> float:
        return per([row for row in run[arm] if row["epoch"] == epoch], "accepted", "passes")

    das, ngram = ([accepted(arm, epoch) for epoch in (0, last)] for arm in ("das", "ngram"))
    colors = colours_of(["none", "das", "ngram"])
    with given.picture("accepted.png") as axes:
        for arm in ("das", "ngram"):
            given.plot_steps(axes, run[arm], "accepted", "passes", label=arm, color=colors[arm])
        axes.set(xlabel="training step", ylabel="accepted tokens per pass", ylim=(0, None))
        axes.set_title("Fig 4: acceptance over training")
    given.line("history (DAS): first → last", f"{paper['das'][0]} → {paper['das'][-1]}", engine=arrow(das))
    given.line("static drafter (paper: EAGLE; ours: ngram)", f"{eagle[0]} → {eagle[-1]}", engine=arrow(ngram))
    given.claim(
        "acceptance of drafts from history grows over training",
        das[1] > das[0] if last else None,
        arrow(das),
        (paper["das"][-1] / paper["das"][0], das[1] / das[0] if das[0] else None, " times the first"),
    )
    given.claim(
        "at the end more tokens are accepted from history than from the static drafter",
        das[1] > ngram[1],
        f"{das[1]:.2f} from history, {ngram[1]:.2f} from ngram",
        (paper["das"][-1] / eagle[-1], das[1] / ngram[1] if ngram[1] else None, " times as many"),
    )
    return given.section(
        f"{run.note} Accepted tokens per pass in the first and the last epoch; in the paper, in the first and the last "
        "100 of 800 steps. ngram, which drafts from the request's own text alone, stands in for a drafter that does "
        "not learn.",
        "The small policy's responses are much alike, so acceptance is high from the second epoch on. No EAGLE head "
        "was trained for it.",
    )


def das_fig7(given: Given) -> Section:
    """Accepted tokens and the time of drafting, by window, in the second half of the steps."""
    run, paper = given.run, given.paper("das_fig7")
    arms = {int(arm.removeprefix("window_")): arm for arm in run.arms if arm.startswith("window_")}
    # In the second half of the steps the drafter has a history of past responses.
    windows = {window: run[arm][len(run[arm]) // 2 :] for window, arm in arms.items()}
    accepted = {window: per(rows, "accepted", "passes") for window, rows in windows.items()}
    # By requests and passes: the time of one draft. Time per emitted token would also fall with acceptance, because
    # fewer passes draft.
    draft_us = {window: 1e6 * per(rows, "draft_s", "passes") for window, rows in windows.items()}
    token_us = {window: 1e6 * per(rows, "draft_s", "tokens") for window, rows in windows.items()}
    first, last, labels = min(windows), max(windows), list(map(str, windows))
    epochs, colors = 1 + max(row["epoch"] for row in windows[first]), colours_of(["none", *labels])
    papers, cost = (
        {key: each["mean"] for key, each in paper[what].items()} for what in ("accepted", "draft_ms_per_token")
    )
    with given.picture("window.png", 2) as (left, right):
        for window, arm in arms.items():
            color = colors[str(window)]
            given.plot_steps(left, run[arm], "accepted", "passes", label=f"window {window}", color=color)
        left.set(xlabel="training step", ylabel="accepted tokens per pass", ylim=(0, None))
        left.set_title("Fig 7 left: acceptance by window")
        right.bar(labels, list(draft_us.values()), color=[colors[label] for label in labels])
        right.set(title="Fig 7 right: cost by window", xlabel="window (epochs)", ylabel="us per draft")
    more = list(accepted.values()) == sorted(accepted.values()) and accepted[last] > accepted[first]
    for window in windows:
        given.line(
            f"window {window}: accepted tokens per pass; drafting, us per draft, us per emitted token",
            engine=f"{accepted[window]:.2f}; {draft_us[window]:.1f}; {token_us[window]:.1f}",
        )
    for key, tokens in papers.items():
        what = f"{key.replace('_', ' ')} iterations (paper): accepted; us per token"
        given.line(what, f"{tokens}; {1e3 * cost[key]:.2f}")
    ours = accepted[last] / accepted[first] if accepted[first] else None
    given.claim(
        "the longer the window, the more tokens are accepted",
        more if epochs > 2 else None,
        named(accepted, "window {}: {:.2f}"),
        (papers["window_all"] / papers["window_4"], ours, " times as many, longest against shortest"),
    )
    ratios = cost["window_all"] / cost["window_4"], draft_us[last] / draft_us[first]
    given.claim(
        "drafting costs more with a longer window",
        bool(np.polyfit(range(len(draft_us)), list(draft_us.values()), 1)[0] > 0),
        named(draft_us, "window {}: {:.1f} us per draft"),
        (*ratios, " times as much, longest against shortest"),
    )
    return given.section(
        f"{run.note} {epochs} epochs; second half of the steps. Learning rate "
        f"{run.config['trainer']['learning_rate']:g}.",
        "Windows are counted in epochs: in a run of 8 epochs, a window of 16 holds everything. A draft is one look-up "
        "for one request in one pass, with all that the drafter and the budget do for it.",
    )


def das_fig10(given: Given) -> Section:
    """Maths: rollout time and rewards. The paper's steps 1-24; 25-30 lie outside its figure's axes."""
    differs = (
        "The paper saves half from its first step on, before any problem has come twice. Ours starts with drafts from "
        "siblings and from the request's own text, and saves more once there is a history. In the paper's steps 25-30, "
        "which lie outside its axes, it saves 7 %."
    )
    return _training(given, "das_fig10_time", "maths.png", "Fig 10", 24, ("more than 50 %", "0.693 / 0.694"), differs)


def das_fig11(given: Given) -> Section:
    """Code: rollout time and rewards."""
    differs = (
        "In the paper's 50 steps no problem comes twice; our problems come again every 4 steps. The paper's reward "
        "reaches 1.85, although the text describes it as pass or fail. Ours is 1 if all tests pass."
    )
    return _training(given, "das_fig11_time", "code.png", "Fig 11", 50, ("about 25 %", "1.637 / 1.639"), differs)


def _training(
    given: Given, key: str, file: str, title: str, steps: int, says: tuple[str, str], differs: str
) -> Section:
    """Makes the section of a training. steps: of the paper. says: the paper's saving, and its mean rewards."""
    run, paper = given.run, given.paper(key)
    _draw_training(given, file, run, ["none", "das"], paper, title)
    given.reductions(run, paper, steps, says[0])
    rewards = numbers([mean(row["reward"] for row in run[arm]) for arm in ("none", "das")], 4)
    given.line("mean reward, none / das", says[1], engine=rewards)
    given.saves_time("DAS needs less rollout time than no speculation", run, paper, steps)
    given.same_training(run)
    return given.section(run.note, differs)


def _draw_training(
    given: Given, file: str, run: Record, arms: Sequence[str], paper: dict[str, Any], title: str
) -> None:
    """Draw the rollout time by step, ours and the paper's, and our rewards, whose curves must be equal. arms: the
    baseline first."""
    with given.picture(file, 3) as drawn:
        for order, arm in enumerate(arms):
            own = {"label": arm, "color": colours_of(arms)[arm]}
            given.plot_steps(drawn[0], run[arm], "rollout_s", **own)
            if curve := paper["arms"].get(PLOTTED[arm]):
                drawn[1].plot(curve["step"], curve["seconds"], **own)
            given.plot_steps(drawn[2], run[arm], "reward", **style(arm, order) | own)
        for axes, of in zip(drawn, ("ours", "the paper's"), strict=False):
            axes.set(xlabel="training step", ylabel="rollout time (s)", ylim=(0, None), title=f"{title}: {of}")
        drawn[2].set(xlabel="training step", ylabel="mean reward", title="Rewards, ours")


def das_fig12(given: Given) -> Section:
    """Budgets."""
    run, paper = given.run, given.paper("das_fig12")
    pairs = {("das", "das_unlimited"): "up to 15 %", ("das_unlimited", "none"): "", ("das", "none"): ""}
    wasted, unlimited = (per(run[arm], "wasted", "tokens") for arm in ("das", "das_unlimited"))
    _draw_training(given, "budget_code.png", run, ["none", "das", "das_unlimited"], paper, "Fig 12, code")
    for arms, claimed in pairs.items():
        given.reductions(run, paper, 18, claimed, arms, "code: ")
        given.saves_time(f"code: {arms[0]} needs less rollout time than {arms[1]}", run, paper, 18, arms)
    given.same_training(run)
    return given.section(
        f"code: {run.note} Rejected draft tokens per emitted token: {wasted:.2f} with das, {unlimited:.2f} with "
        "das_unlimited.",
        "On this CPU a drafted token costs a sixth of a pass with one request, so drafting without a limit is "
        "expensive (docs/drafters_and_budgets.md). The paper's GPUs verify draft tokens nearly for free.",
    )


def das_fig13(given: Given) -> Section:
    """Half the cap, half the batch: in the paper a cap of 8k instead of 16k tokens, and 16 instead of 32 problems."""
    for label, key, claimed in (
        ("half_cap", "das_fig13_8k", "over 30 %"),
        ("half_batch", "das_fig13_batch16", "similar to Fig 11"),
    ):
        run, paper, name = given.runs[label], given.paper(key), label.replace("_", " ")
        _draw_training(given, f"{label}.png", run, ["none", "das"], paper, f"Fig 13, {name}")
        given.reductions(run, paper, 20, claimed, of=f"{name}: ")
        given.saves_time(f"{name}: DAS needs less rollout time than no speculation", run, paper, 20)
        given.same_training(run)
    return given.section(
        f"half cap: {given.runs['half_cap'].note} half batch: {given.runs['half_batch'].note}",
        "The paper's left panel shows less than its text claims: 15.8 % over steps 1-20, instead of over 30 %.",
    )


HEADER = (
    *("setting", "rollout time / none", "from 2nd epoch", "tokens/pass", "drafted/pass", "accepted/drafted"),
    *("drafting, us per token", "reward, last visit", "identical to none"),
)


def ablation(given: Given) -> Section:
    """Each setting of an ablation."""
    settings = _settings(given)
    ratios = {name: run.result["ratio_to_none"][arm]["rollout_s"] for name, (run, arm) in settings.items()}
    colors = colours_of(["none", *settings])
    with given.picture("settings.png", 2) as (time_axes, accepted_axes):
        for name, (run, arm) in settings.items():
            epochs = ratios[name]["by_epoch"]
            time_axes.plot(list(map(int, epochs)), list(epochs.values()), ".-", color=colors[name], label=name)
            given.plot_steps(accepted_axes, run[arm], "accepted", "passes", color=colors[name], linewidth=1)
        time_axes.axhline(1, color=GREY, linewidth=0.8)
        time_axes.set(title="Rollout time", xlabel="epoch", ylabel="rollout time / that of none", ylim=(0, None))
        accepted_axes.set(title="Acceptance", xlabel="training step", ylabel="accepted tokens per pass")
        accepted_axes.set(ylim=(0, None))

    def cells(name: str) -> list[str]:
        (run, arm), later = settings[name], ratios[name]["from_second_epoch"]
        steps, reward = run[arm], run.result["arms"][arm]["reward"].get("last_visit")
        return [
            *(name, f"{ratios[name]['overall']:.3f}", "" if later is None else f"{later:.3f}"),
            *(f"{per(steps, 'tokens', 'passes'):.2f}", f"{per(steps, 'drafted', 'passes'):.2f}"),
            percent(per(steps, "accepted", "drafted")) if total(steps, "drafted") else "-",
            *(f"{1e6 * per(steps, 'draft_s', 'tokens'):.1f}", "-" if reward is None else f"{reward:.3f}"),
            "NO" if differing(run.result["identical"][arm]) else "yes",
        ]

    same = [run.identical for run in given.runs.values()]
    given.claim(
        "no setting changes the training by a single bit",
        all(same),
        f"{sum(same)} of {len(same)} runs are identical to none",
    )
    note = given.run.note if len(given.runs) == 1 else ""
    return given.section(note, table=Table(HEADER, [cells(name) for name in settings]))


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
