"""EfficientRollout, main table. Its methods are EAGLE-3, and drafts by a quantized copy of the policy: always on, with
a toggle (it turns drafting on when that pays), and with toggle and ladder (the ladder adapts the draft length)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis import read
from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.report import Line, Section, Table
from analysis.sections.drafting import (
    FROZEN,
    ONLINE,
    accepted_share,
    block_efficiency,
    change,
    drafted_per_cycle,
    head_arm,
    named,
    numbers,
    speedup,
    tokens_per_pass,
)
from analysis.sections.shared import identity_text, is_identical, policy_note, rows

METHODS = {  # row's label -> label of the run, name of the arm, the paper's method
    "self-draft, always on": ("self_drafts", "self_draft", "w4_always_on"),
    "self-draft, toggle": ("self_drafts", "self_draft_toggle", None),
    "self-draft, toggle and ladder": ("self_drafts", "self_draft_adaptive", "full"),
    "EAGLE-3, frozen": ("heads", head_arm("in_domain", FROZEN), None),
    "EAGLE-3, online": ("heads", head_arm("in_domain", ONLINE), "eagle3"),
}
MODELS = {"Qwen2.5-7B": 7, "Qwen2.5-14B": 5, "Llama-3.1-8B-Instruct": 5}  # model -> draft length (gamma) in the replay
LARGE = ("always", "toggle", "adaptive")  # budget policies of the run `large`
ALIKE = 1.03  # a ratio of times up to this may be noise of the machine


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Measure the paper's columns in a training of the small policy, and rollout times of a model of 30 million random
    weights."""
    theirs = {(row["model"], row["method"]): row for row in published["er_main"]["data"]["rows"]}
    large = read.result(runs["large"])
    ratio = {label: 1 / speedup(runs[run], arm) for label, (run, arm, _) in METHODS.items()}
    draw(ratio, large, folder / "main.png")
    always, toggle, full = list(METHODS)[:3]
    compared = {"self-draft": always, "EAGLE-3": "EAGLE-3, online"}
    alpha = {name: accepted_share(rows(runs[METHODS[of][0]], METHODS[of][1])) for name, of in compared.items()}
    first, last = workloads(large)[0], workloads(large)[-1]
    return Section(
        title,
        f"{policy_note(runs['self_drafts'])} W8A8 in place of W4, which saves no time on CPUs. EAGLE-3 drafts 3, "
        "self-drafts 7, the ladder 5 to 11 tokens. 30 million: random weights, no training; each request may be 0.95 "
        "times as long as the one before.",
        [*paper_lines(theirs, published, ratio), *large_lines(large)],
        "A draft pass saves the reading of weights. The small policy (1.9 million parameters) is too small for that: a "
        "draft pass takes about as long as a pass, so drafts always on lose time. The toggle leaves them off while "
        "many requests are live (pass_speedup in the timelines), but each pass of an engine that may draft takes some "
        "5 % longer there. With 30 million parameters drafts pay at 1 and 2 live requests, where the toggle makes "
        "nearly the same drafts as always on. The replay leaves out what a cycle costs on the host. Changes of the "
        "small policy are medians over steps.",
        ["main.png"],
        method_table(runs, ratio, theirs),
        [
            shorter("self-drafts, always on, make rollouts shorter", ratio[always], theirs, "w4_always_on"),
            Ordering(
                "with the toggle no longer than always on",
                ratio[toggle] <= ratio[always],
                f"{change(ratio[toggle])}, {change(ratio[always])}",
            ),
            shorter("toggle and ladder make rollouts shorter", ratio[full], theirs, "full"),
            Ordering("the toggle costs at most 3 %", ratio[toggle] <= ALIKE, change(ratio[toggle])),
            Ordering(
                "self-drafts are accepted more often than EAGLE-3's",
                alpha["self-draft"] > alpha["EAGLE-3"],
                named(alpha, 3),
            ),
            Ordering(
                f"30 million, {count(first)} live: self-drafts make rollouts shorter",
                large[first]["always"]["ratio"] < 1,
                change(large[first]["always"]["ratio"]),
            ),
            Ordering(
                f"30 million, {count(last)} live: no longer with the toggle than always on",
                large[last]["toggle"]["ratio"] <= large[last]["always"]["ratio"],
                f"{change(large[last]['toggle']['ratio'])}, {change(large[last]['always']['ratio'])}",
            ),
            Ordering(
                "training is the same with every drafter",
                all(is_identical(runs[run]) for run in ("self_drafts", "heads")),
                f"{identity_text(runs['self_drafts'])}; {identity_text(runs['heads'])}",
            ),
        ],
    )


def shorter(claim: str, ratio: float, theirs: Mapping[tuple[str, str], Any], method: str) -> Ordering:
    """Return the claim that a method makes rollouts shorter, with the paper's number for Qwen2.5-7B. ratio: ours, time
    with the method over time without."""
    paper = -theirs["Qwen2.5-7B", method]["rollout_change_pct"]
    return Ordering(claim, ratio < 1, change(ratio), paper, 100 * (1 - ratio), " % less")


def workloads(large: Mapping[str, Any]) -> list[str]:
    """Return the names of the workloads of the run `large`, sorted by their numbers of live requests."""
    return sorted((name for name in large if name.startswith("live_")), key=count)


def count(workload: str) -> int:
    """Return the number of live requests that the name of a workload contains."""
    return int(workload.removeprefix("live_"))


def paper_lines(
    theirs: Mapping[tuple[str, str], Any], published: Mapping[str, Any], ratio: Mapping[str, float]
) -> list[Line]:
    """Return a line for each method of the paper: how it changes the rollout time for the paper's models, in our replay
    of these models, and for our small policy."""
    replayed = published["er_replay"]["data"]["no_overhead_6_steps"]
    lines = []
    for label, (_, _, method) in METHODS.items():
        if method is None:
            continue
        of_paper = [f"{theirs[model, method]['rollout_change_pct']:+.1f}" for model in MODELS]
        key = {"w4_always_on": "always", "full": "toggle"}.get(method)
        of_replay = [
            f"{row[key]:+.1f}"
            for case in MODELS.items()
            for row in replayed
            if key and case == (row["model"], row["gamma"])
        ]
        what = f"{label}: change of rollout time, % (7B / 14B / Llama)"
        lines.append(Line(what, "", " / ".join(of_paper), " / ".join(of_replay), change(ratio[label])))
    return lines


def large_lines(large: Mapping[str, Any]) -> list[Line]:
    """Return lines that say how drafts change the rollout time of a model of 30 million random weights, by number of
    live requests."""
    return [
        Line(
            f"30 million random weights, {count(name)} live: always on / toggle / toggle and ladder",
            engine=" / ".join(change(large[name][policy]["ratio"]) for policy in LARGE),
        )
        for name in workloads(large)
    ]


def method_table(runs: Mapping[str, Path], ratio: Mapping[str, float], theirs: Mapping[tuple[str, str], Any]) -> Table:
    """Return a table with the columns of the paper's table. A row has our values, then the paper's values for its 7B
    model."""
    cells = []
    for label, (run, arm, _) in METHODS.items():
        steps = rows(runs[run], arm)
        prep = [row["requantize_s"] + row.get("head_train_s", 0.0) for row in steps if "requantize_s" in row]
        prep = prep or [row.get("head_train_s", 0.0) for row in steps]
        cells.append(
            [
                label,
                f"{sum(prep) / len(prep):.3f}",
                numbers([block_efficiency(steps), drafted_per_cycle(steps)]),
                f"{accepted_share(steps):.1%}" if sum(row["drafted"] for row in steps) else "-",
                f"{tokens_per_pass(steps):.2f}",
                change(ratio[label]),
                change(1 / speedup(runs[run], arm, "step_s")),
            ]
        )
    for method in ("w4_always_on", "full", "eagle3"):
        row = theirs["Qwen2.5-7B", method]
        cells.append(
            [
                f"paper, Qwen2.5-7B: {method}",
                str(row["prep_s"]),
                f"{row['tau']} / {row['gamma_mean']}",
                f"{row['alpha_pct']} %",
                "",
                f"{row['rollout_change_pct']:+.1f} %",
                f"{row['step_change_pct']:+.1f} %",
            ]
        )
    header = ["", "preparation, s a step", "tau / gamma", "accepted", "tokens per pass", "rollout", "step"]
    return Table(header, cells)


def draw(ratio: Mapping[str, float], large: Mapping[str, Any], path: Path) -> None:
    """Draw rollout times relative to `none`: the small policy's arms, and 30 million weights by live requests."""
    with figure(path, panels=2) as (small, by_live):
        small.barh(list(ratio)[::-1], list(ratio.values())[::-1], color="#0072B2")
        small.axvline(1, color="black", linewidth=1)
        small.set(xlabel="rollout time / none", title="Small policy, 1.9 million")
        names = workloads(large)
        for policy, colour in zip(LARGE, ("#0072B2", "#E69F00", "#009E73"), strict=True):
            ys = [large[name][policy]["ratio"] for name in names]
            by_live.plot([str(count(name)) for name in names], ys, "o-", label=policy, color=colour)
        by_live.axhline(1, color="black", linewidth=1)
        by_live.set(
            xlabel="live requests", ylabel="rollout time / none", ylim=(0, None), title="30 million random weights"
        )
        by_live.legend()
