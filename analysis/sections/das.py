"""The figures of the DAS paper, from runs on the real engine."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import colours_of
from analysis.orderings import Ordering
from analysis.quantities import (
    PLOTTED,
    arrow,
    last_half,
    named,
    numbers,
    per,
    percent,
    reduction_lines,
    same_training,
    saves_time,
)
from analysis.record import Record
from analysis.report import Line, Section, Table
from analysis.rollouts import distant, half_ended, lengths_by_group, similarities
from analysis.sections.given import BLUE, GREY, Given

GRAM = 4  # tokens of an n-gram of Fig 2; the paper does not tell its number


def das_fig1(given: Given) -> Section:
    """Live requests over a rollout. The axes are relative, because the paper gives no units."""
    run, paper = given.run, given.paper("das_fig1")
    # The baseline's step with the most passes: its responses are longest.
    step = max(run["none"], key=lambda row: row["decode_steps"])["step"]
    line = {arm: run.timeline(f"arms/{arm}", step) for arm in ("none", "das")}
    end = {arm: line[arm]["step_time_s"][-1] for arm in line}
    half = {arm: half_ended(line[arm]) / end["none"] for arm in line}
    plain_s, das_s, colors = paper["end_time"]["verl"], paper["end_time"]["das"], colours_of(["none", "das"])
    with given.picture("live_requests.png") as axes:
        for arm in line:
            live = np.array(line[arm]["step_live"], float)
            seconds = np.array(line[arm]["step_time_s"]) / end["none"]
            axes.step(seconds, live / live[0], where="post", label=arm, color=colors[arm])
        for arm, of, times in (("none", "verl", "time"), ("das", "das", "das_time")):
            share = np.array(paper[of]) / paper["verl"][0]
            axes.plot(np.array(paper[times]) / plain_s, share, ":", label=f"{arm} (paper)", color=colors[arm])
        axes.set(xlabel="time / rollout time of none", ylabel="share of requests that are live", ylim=(0, None))
        axes.set_title("Fig 1: live requests in one rollout")
        axes.legend()
    ended = "time at which half the requests have ended, none / das"
    return given.section(
        f"{run.note} Step {step}.",
        lines=[
            Line("rollout time with DAS / without", f"{das_s / plain_s:.2f}", engine=f"{end['das'] / end['none']:.2f}"),
            Line(ended, "0.31 / 0.26", engine=f"{half['none']:.2f} / {half['das']:.2f}"),
        ],
        orderings=[
            Ordering(
                "the last response ends earlier with DAS",
                end["das"] < end["none"],
                f"after {end['das']:.2f} s with DAS, {end['none']:.2f} s without",
                100 * (1 - das_s / plain_s),
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


def das_fig2(given: Given) -> Section:
    """Similarity of responses over training."""
    matrix = similarities(given.run, GRAM)
    recent = [float(matrix[epoch, epoch - 1]) for epoch in range(1, len(matrix))]
    near, far = distant(matrix, 1, 1), distant(matrix, max(2, len(matrix) // 2), len(matrix))
    middle = (len(recent) + 1) // 2
    early, late = (float(np.mean(part)) if part else 0.0 for part in (recent[:middle], recent[middle:]))
    measured = arrow([recent[0], recent[-1]]) if recent else ""
    with given.picture("similarity.png", 2) as (left, right):
        left.plot(range(1, len(matrix)), recent, ".-", color=BLUE)
        left.set(xlabel="epoch", ylabel=f"share of {GRAM}-grams seen before", ylim=(0, 1))
        left.set_title("Fig 2 left: similarity to the epoch before")
        shown = right.imshow(matrix, vmin=0, vmax=1, cmap="cividis")
        right.figure.colorbar(shown, label=f"share of {GRAM}-grams in common")
        right.grid(visible=False)
        right.set(title="Fig 2 right: similarity between epochs", xlabel="compared with epoch", ylabel="epoch")
    apart = "similarity of neighbouring epochs / of epochs at least half the run apart"
    return given.section(
        f"{given.run.note} The measure is the share of the {GRAM}-grams of an epoch's responses that also occur in the "
        "same problem's responses of the epoch before (left) or of any other epoch (right), as a mean over problems. "
        "The paper says neither what n it uses nor how many epochs its recent history spans.",
        "Our policy is trained with a learning rate a hundred times higher, for a tenth of the steps. Its similarity "
        "rises within a few epochs.",
        lines=[
            Line(
                "similarity to recent history, first → last",
                "0.61 → 0.80 (Qwen2.5-7B), 0.51 → 0.72 (R1-7B)",
                engine=measured,
            ),
            Line(apart, "0.5-0.9, high near the diagonal", engine=f"{near:.2f} / {far:.2f}" if far else ""),
        ],
        orderings=[
            Ordering(
                "responses grow more similar to recent ones (second half of the epochs against the first half)",
                late > early if len(recent) > 1 else None,
                measured,
                0.20,  # the mean of 0.61 to 0.80 and 0.51 to 0.72
                recent[-1] - recent[0] if recent else None,
                " more",
            ),
            Ordering(
                "neighbouring epochs are more similar than distant ones",
                near > far if far else None,
                f"{near:.2f} for neighbouring epochs, {far:.2f} for distant ones",
            ),
        ],
    )


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
        axes.legend()
    return given.section(
        f"{run.note} Accepted tokens per pass in the first and the last epoch; in the paper, in the first and the last "
        "100 of 800 steps. ngram, which drafts from the request's own text alone, stands in for a drafter that does "
        "not learn.",
        "The small policy's responses are much alike, so acceptance is high from the second epoch on. No EAGLE head "
        "was trained for it.",
        lines=[
            Line("history (DAS): first → last", f"{paper['das'][0]} → {paper['das'][-1]}", engine=arrow(das)),
            Line("static drafter (paper: EAGLE; ours: ngram)", f"{eagle[0]} → {eagle[-1]}", engine=arrow(ngram)),
        ],
        orderings=[
            Ordering(
                "acceptance of drafts from history grows over training",
                das[1] > das[0] if last else None,
                arrow(das),
                paper["das"][-1] / paper["das"][0],
                das[1] / das[0] if das[0] else None,
                " times the first",
            ),
            Ordering(
                "at the end more tokens are accepted from history than from the static drafter",
                das[1] > ngram[1],
                f"{das[1]:.2f} from history, {ngram[1]:.2f} from ngram",
                paper["das"][-1] / eagle[-1],
                das[1] / ngram[1] if ngram[1] else None,
                " times as many",
            ),
        ],
    )


def das_fig5(given: Given) -> Section:
    """The index against a suffix array."""
    paper, measured = given.paper("das_fig5"), given.run.result["array"]
    # The paper's operation and structure, and our measurement in milliseconds.
    columns = [
        ("speculate", "suffix_tree", "query_ms"),
        ("speculate", "suffix_array", "array_query_ms"),
        ("insert_100_tokens", "suffix_tree", "insert_100_ms"),
        ("insert_100_tokens", "suffix_array", "array_sort_ms"),
    ]
    names, sizes = {"suffix_tree": "index", "suffix_array": "array"}, paper["corpus_tokens"]
    colors, ours = colours_of(["index", "array"]), [row["tokens"] for row in measured]
    with given.picture("tree_and_array.png", 2) as drawn:
        for axes, of, title in zip(
            drawn, ("speculate", "insert_100_tokens"), ("draft query", "insertion of 100 tokens"), strict=True
        ):
            own = [(names[name], name, key) for operation, name, key in columns if operation == of]
            for label, _, key in own:
                axes.plot(ours, [row[key] for row in measured], ".-", color=colors[label], label=label)
            for label, name, _ in own:
                axes.plot(sizes, paper[of][name], ":", color=colors[label], label=f"{label} (paper)")
            axes.set(title=f"Fig 5: {title}", xlabel="tokens indexed", ylabel="ms", xscale="log", yscale="log")
            axes.legend()

    def cell(row: dict[str, float], of: str, name: str, key: str) -> str:
        at = f"{paper[of][name][sizes.index(row['tokens'])]:g} · " if row["tokens"] in sizes else ""
        return f"{at}{row[key]:.3g}"

    speedups = [row["array_query_ms"] / row["query_ms"] for row in measured]
    slowest = max(row["insert_100_ms"] for row in measured)
    return given.section(
        "Milliseconds, paper · ours. The paper's index is a suffix tree; ours is an index of hashed contexts, in C. "
        "The array is searched by bisection and sorted anew for every insertion, in numpy. The languages differ, so "
        "compare orders of magnitude only.",
        table=Table(
            ["tokens", "index, query", "array, query", "index, insert 100", "array, insert 100"],
            [[f"{row['tokens']:,}", *(cell(row, *column) for column in columns)] for row in measured],
        ),
        orderings=[
            Ordering(
                "the growing index answers faster than the array at every size",
                min(speedups) > 1,
                f"{min(speedups):.1f} to {max(speedups):.0f} times faster",
                paper["derived_speculate_ratio_range"][0],
                min(speedups),
                " times as fast, at least",
            ),
            Ordering(
                "inserting 100 tokens takes less than a millisecond at every size",
                slowest < 1,
                f"at most {slowest:.3f} ms",
                max(paper["insert_100_tokens"]["suffix_tree"]),
                slowest,
                " ms at most",
            ),
        ],
    )


def das_fig7(given: Given) -> Section:
    """Accepted tokens and the time of drafting, by window, in the second half of the steps."""
    run, paper = given.run, given.paper("das_fig7")
    arms = {int(arm.removeprefix("window_")): arm for arm in run.arms if arm.startswith("window_")}
    windows = {window: last_half(run[arm]) for window, arm in arms.items()}
    accepted = {window: per(rows, "accepted", "passes") for window, rows in windows.items()}
    # By requests and passes: the time of one draft. Time per emitted token would also fall with acceptance, because
    # fewer passes draft.
    draft_us = {window: 1e6 * per(rows, "draft_s", "passes") for window, rows in windows.items()}
    token_us = {window: 1e6 * per(rows, "draft_s", "tokens") for window, rows in windows.items()}
    first, last, cost, labels = min(windows), max(windows), paper["draft_ms_per_token"], list(map(str, windows))
    epochs, colors = 1 + max(row["epoch"] for row in windows[first]), colours_of(["none", *labels])
    with given.picture("window.png", 2) as (left, right):
        for window, arm in arms.items():
            color = colors[str(window)]
            given.plot_steps(left, run[arm], "accepted", "passes", label=f"window {window}", color=color)
        left.set(xlabel="training step", ylabel="accepted tokens per pass", ylim=(0, None))
        left.set_title("Fig 7 left: acceptance by window")
        left.legend()
        right.bar(labels, list(draft_us.values()), color=[colors[label] for label in labels])
        right.set(title="Fig 7 right: cost by window", xlabel="window (epochs)", ylabel="us per draft")
    more = list(accepted.values()) == sorted(accepted.values()) and accepted[last] > accepted[first]
    return given.section(
        f"{run.note} {epochs} epochs; second half of the steps. Learning rate "
        f"{run.config['trainer']['learning_rate']:g}.",
        "Windows are counted in epochs: in a run of 8 epochs, a window of 16 holds everything. A draft is one look-up "
        "for one request in one pass, with all that the drafter and the budget do for it.",
        lines=[
            *(
                Line(
                    f"window {window}: accepted tokens per pass; drafting, us per draft, us per emitted token",
                    engine=f"{accepted[window]:.2f}; {draft_us[window]:.1f}; {token_us[window]:.1f}",
                )
                for window in windows
            ),
            *(
                Line(
                    f"{key.replace('_', ' ')} iterations (paper): accepted; us per token",
                    f"{paper['accepted'][key]['mean']}; {1e3 * cost[key]['mean']:.2f}",
                )
                for key in paper["accepted"]
            ),
        ],
        orderings=[
            Ordering(
                "the longer the window, the more tokens are accepted",
                more if epochs > 2 else None,
                named(accepted, "window {}: {:.2f}"),
                paper["accepted"]["window_all"]["mean"] / paper["accepted"]["window_4"]["mean"],
                accepted[last] / accepted[first] if accepted[first] else None,
                " times as many, longest against shortest",
            ),
            Ordering(
                "drafting costs more with a longer window",
                bool(np.polyfit(range(len(draft_us)), list(draft_us.values()), 1)[0] > 0),
                named(draft_us, "window {}: {:.1f} us per draft"),
                cost["window_all"]["mean"] / cost["window_4"]["mean"],
                draft_us[last] / draft_us[first],
                " times as much, longest against shortest",
            ),
        ],
    )


def das_fig8(given: Given) -> Section:
    """Latency of a pass."""
    paper, forms = given.paper("das_fig8"), given.run.result["forms"]
    passes = np.array(read.latency(given.run.folder)["passes"], float)
    tokens, seconds, sizes = passes[:, 1], passes[:, 3], np.unique(passes[:, 1])
    affine, error = forms["affine"]["coefficients"], forms["affine"]["error"]
    best = min(forms, key=lambda name: forms[name]["error"])
    with given.picture("latency.png", 2) as (left, right):
        left.plot(tokens, 1e3 * seconds, ".", markersize=2, color="#BBBBBB", label="passes")
        medians = [1e3 * np.median(seconds[tokens == size]) for size in sizes]
        left.plot(sizes, medians, ".", color="#000000", label="median")
        left.plot(sizes, 1e3 * (affine["c_base"] + affine["c_tok"] * sizes), color=BLUE, label="affine fit")
        left.set(title="Fig 8: this engine", xlabel="tokens in the pass", ylabel="time of a pass (ms)")
        left.set(ylim=(0, 1.2e3 * np.quantile(seconds, 0.999)))
        left.legend()
        right.plot(paper["tokens"], paper["latency_ms"], "o-", color=BLUE)
        right.set(title="Fig 8: the paper's, 7B", xlabel="tokens in the pass", ylabel="time of a pass (ms)")
        right.set(ylim=(0, None))
    fit = paper["fits"][0]
    return given.section(
        "Every combination of live requests and drafted tokens, timed in the real engine. Errors are measured on "
        "passes that the fit did not see.",
        "On a CPU a live request costs more than a drafted token of the same request. No function of the number of "
        "tokens alone can express that. The form `drafting` counts both, and budgets use it.",
        lines=[
            Line(
                "fixed time per pass, time per token",
                f"{fit['c_base_ms']} ms, {fit['c_tok_us']} us",
                engine=f"{1e3 * affine['c_base']:.2f} ms, {1e6 * affine['c_tok']:.1f} us",
            ),
            Line("mean relative error of the affine form", claimed="about 12 %", engine=percent(error)),
            Line("the best form here, and its error", engine=f"{best}, {percent(forms[best]['error'])}"),
        ],
        orderings=[
            Ordering(
                "latency is affine in the number of tokens, within the paper's 12 %",
                error <= 0.12,
                f"mean relative error {percent(error)}",
                12,
                100 * error,
                " % error",
            )
        ],
    )


def das_fig9(given: Given) -> Section:
    """The mean and the longest response of each problem."""
    run, paper = given.run, given.paper("das_fig9")
    lengths = lengths_by_group(run)
    mean_length = np.array([np.mean(group) for group in lengths.values()])
    longest = np.array([max(group) for group in lengths.values()])
    spread, cap = longest / mean_length, run.config["trainer"]["max_completion_length"]
    with given.picture("lengths.png") as axes:
        epochs = [epoch for epoch, _ in lengths]
        shown = axes.scatter(mean_length, longest, c=epochs, s=14, cmap="cividis")
        axes.figure.colorbar(shown, label="epoch")
        axes.plot([0, longest.max()], [0, longest.max()], color=GREY, linewidth=0.8)
        axes.set(xlabel="mean length (tokens)", ylabel="longest response (tokens)")
        axes.set_title("Fig 9: response lengths of each problem and epoch")
    least, most = paper["mean_range"]
    ranges = f"{mean_length.min():.0f}-{mean_length.max():.0f} tokens"
    return given.section(
        f"{run.note} One point for each problem and epoch, {len(lengths)} in all.",
        "Most searches of the small policy end after a few attempts, and a few go on to the length cap.",
        lines=[
            Line("mean length, range", f"{least}-{most} tokens", engine=ranges),
            Line("longest / mean length, median and maximum", engine=f"{np.median(spread):.1f}, {spread.max():.1f}"),
            Line(
                "groups with a response at the length cap",
                "many, even for means below 1k of 16k",
                engine=percent(float(np.mean(longest >= cap))),
            ),
        ],
        orderings=[
            Ordering(
                "a problem's longest response is far longer than its mean (at least 1.5 times for half of them)",
                bool(np.median(spread) > 1.5),
                f"{np.median(spread):.2f} times as long in the median",
            )
        ],
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
    rewards = numbers([mean(row["reward"] for row in run[arm]) for arm in ("none", "das")], 4)
    claim = saves_time("DAS needs less rollout time than no speculation", run, paper, steps)
    lines = [
        *reduction_lines(run, paper, steps, says[0]),
        Line("mean reward, none / das", says[1], engine=rewards),
    ]
    return given.section(run.note, differs, lines=lines, orderings=[claim, same_training(run)])


def _draw_training(
    given: Given, file: str, run: Record, arms: Sequence[str], paper: dict[str, Any], title: str
) -> None:
    """Draw the rollout time by step, ours and the paper's, and our rewards, whose curves must be equal. arms: the
    baseline first."""
    colors = colours_of(arms)
    with given.picture(file, 3) as drawn:
        for order, arm in enumerate(arms):
            own = {"label": arm, "color": colors[arm]}
            given.plot_steps(drawn[0], run[arm], "rollout_s", **own)
            if curve := paper["arms"].get(PLOTTED[arm]):
                drawn[1].plot(curve["step"], curve["seconds"], **own)
            style = "-" if order == 0 else (0, (4, 2 + order))
            given.plot_steps(drawn[2], run[arm], "reward", **own, linewidth=max(1.0, 3.0 - order), linestyle=style)
        for axes, of in zip(drawn, ("ours", "the paper's"), strict=False):
            axes.set(xlabel="training step", ylabel="rollout time (s)", ylim=(0, None), title=f"{title}: {of}")
        drawn[2].set(xlabel="training step", ylabel="mean reward", title="Rewards, ours")
        for axes in drawn:
            axes.legend()


def das_fig12(given: Given) -> Section:
    """Budgets."""
    run, paper = given.run, given.paper("das_fig12")
    pairs = [("das", "das_unlimited", "up to 15 %"), ("das_unlimited", "none", ""), ("das", "none", "")]
    wasted, unlimited = (per(run[arm], "wasted", "tokens") for arm in ("das", "das_unlimited"))
    _draw_training(given, "budget_code.png", run, ["none", "das", "das_unlimited"], paper, "Fig 12, code")
    return given.section(
        f"code: {run.note} Rejected draft tokens per emitted token: {wasted:.2f} with das, {unlimited:.2f} with "
        "das_unlimited.",
        "On this CPU a drafted token costs a sixth of a pass with one request, so drafting without a limit is "
        "expensive (docs/drafters_and_budgets.md). The paper's GPUs verify draft tokens nearly for free.",
        lines=[
            line
            for arm, other, claimed in pairs
            for line in reduction_lines(run, paper, 18, claimed, arm, other, "code: ")
        ],
        orderings=[
            *(
                saves_time(f"code: {arm} needs less rollout time than {other}", run, paper, 18, arm, other)
                for arm, other, _ in pairs
            ),
            same_training(run),
        ],
    )


def das_fig13(given: Given) -> Section:
    """Half the cap, half the batch: in the paper a cap of 8k instead of 16k tokens, and 16 instead of 32 problems."""
    lines, claims = list[Line](), list[Ordering]()
    for label, name, key, claimed in (
        ("half_cap", "half cap", "das_fig13_8k", "over 30 %"),
        ("half_batch", "half batch", "das_fig13_batch16", "similar to Fig 11"),
    ):
        run, paper = given.runs[label], given.paper(key)
        _draw_training(given, f"{label}.png", run, ["none", "das"], paper, f"Fig 13, {name}")
        lines += reduction_lines(run, paper, 20, claimed, of=f"{name}: ")
        claims.append(saves_time(f"{name}: DAS needs less rollout time than no speculation", run, paper, 20))
        claims.append(same_training(run))
    return given.section(
        f"half cap: {given.runs['half_cap'].note} half batch: {given.runs['half_batch'].note}",
        "The paper's left panel shows less than its text claims: 15.8 % over steps 1-20, instead of over 30 %.",
        lines=lines,
        orderings=claims,
    )
