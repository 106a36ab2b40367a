"""DAS (arXiv 2511.13841): its figures, replayed on recorded chains of thought with the paper's own latencies (Fig 8).

The share of one engine is simulated, with its share of the problems: engines are alike, and siblings stay together.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis import read
from analysis.report import Line, Section, curves
from das.budget.latency_forms import Form, Passes, fit_affine, relative_error
from das.replay.cluster import Step
from das.replay.hardware import BANDWIDTH_SHARE, GPUS, derived
from das.replay.scale import ContextRead, CostScaled
from das.replay.synthesis import Synthesis
from das.replay.times import Table, Times
from das.replay.workload import Workload
from experiments.papers import das_drafts
from experiments.papers.replayed import Setting, arm, percent, seconds, sources, steps_of
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.run.progress import Progress

PREFACE = (
    "Text: recorded chains of thought (no recording of the paper's own runs exists); where a trace has too few "
    "responses of a problem, further ones are synthetic (das/replay/synthesis.py). Latencies: points of the paper's "
    "Fig 8, digitised, unless a section says otherwise. One engine of the paper's 8 or 16 is simulated with its share "
    "of problems. Reduction = 1 - with / without speculation. Figures of the paper carry no time unit; seconds are "
    "assumed."
)
RANGES = ((1, 1), (1, 9), (10, 18), (19, 27), (1, 24), (25, 30), (1, 30))  # of Fig 10's steps; 9 an epoch
FIG10 = (
    "The paper saves 50 % from step 1 on. Recorded text at Fig 8's prices supports less: least in the first "
    "epoch, where only own text and siblings can be drafted from, more once problems come again. What limits it "
    "most is the price: Fig 8 charges every token of a pass alike, 28 us, so at 256 live requests a drafted token "
    "costs what an emitted one does and only likely ones pay. It cannot be the whole price of the paper's engine: "
    "by Fig 8 a pass of 256 requests takes 15 ms, but 443.6 s a step are 27 ms a pass even if the longest "
    "response had all 16,384 tokens. The next but one section tries what the rest may be. The text is the other "
    "limit (cold start, below). Seconds differ also because our responses are shorter than the paper's."
)
CODE = (
    "DeepCoder's 24K problems do not come twice in 50 steps, so both gain from own and sibling text alone. Ours "
    "gain more: with 16 live requests a pass costs its fixed price and drafts are nearly free. What an engine "
    "pays for speculating at all (bookkeeping, drafting on the host) is not in Fig 8, and the text is maths, not "
    "code: which of the two it is cannot be told from here."
)
PRICES = (
    "Fig 8 has one price for a live request and for a drafted token. Whatever a pass costs that drafted tokens do "
    "not add to makes them cheap by comparison: keys and values are read once a pass however many tokens are "
    "verified (at the share of bandwidth and bytes that EfficientRollout fitted for Qwen2.5-7B on an A100), and "
    "so is the host's time paid. `what Fig 10 takes beyond`: host time a pass fitted to the paper's plain arm "
    "alone, were its longest response 16,384 tokens; nothing was fitted to its DAS arm. With it the replay saves "
    "about what the paper plots over all steps, but less in the first epoch, where no problem has come before, "
    "and more in the last two. The roofline is the other extreme: verifying costs nothing until a pass is "
    "compute-bound. `Drafts for nothing` is the most that this text supports with 16 drafted tokens a pass, so 55 "
    "% would need verification that is all but free, or text that repeats itself more."
)


def sections(
    task: DictConfig, budget: DictConfig, published: dict[str, Any], folder: Path, say: Progress
) -> list[Section]:
    """All sections; figures go to `folder`. UserError, in one line, for settings that cannot be."""
    check(task)
    recorded = sources(Path(task.traces), int(task.problems))
    points = published["das_fig8"]["data"]
    times = Times(
        Table(tuple(points["tokens"]), tuple(t / 1e3 for t in points["latency_ms"])), draft_request=task.draft_us * 1e-6
    )
    synthesis = Synthesis(recorded, float(task.run_length))
    at = Setting(task, plain(budget), recorded, synthesis, times, published, folder, say)
    return [latency(points), *maths(at), *code(at), *das_drafts.sections(at)]


def check(task: DictConfig) -> None:
    """Refuse settings that cannot be, before anything is simulated."""
    counts = ("problems", "maths_steps", "maths_batch", "code_steps", "ablation_problems", "window_problems")
    for name in (*counts, "window_epochs", "similarity_problems", "run_length"):
        if task[name] < 1:
            raise UserError(f"task.{name}={task[name]}: must be at least 1")
    if task.draft_us < 0:
        raise UserError(f"task.draft_us={task.draft_us}: must not be negative")
    if task.engine_run is not None and not (Path(task.engine_run) / "metrics.jsonl").exists():
        raise UserError(f"task.engine_run={task.engine_run} is no comparison's folder: metrics.jsonl is not there")


def engine_reduction(run: str | None, with_: str, without: str) -> str:
    """Reduction of rollout time in a comparison on the real engine, from its metrics; "" without a run."""
    if run is None:
        return ""
    total: dict[str, float] = {}
    for row in read.metrics(Path(run)):
        total[row["arm"]] = total.get(row["arm"], 0.0) + row["rollout_s"]
    if not {with_, without} <= total.keys():
        return f"no arm {' or '.join({with_, without} - total.keys())} in task.engine_run"
    return percent(1 - total[with_] / total[without])


def reductions(
    arms: dict[str, list[Step]],
    paper: dict[str, Any] | None,
    ranges: Sequence[tuple[int, int]],
    with_: str,
    without: str = "none",
) -> list[Line]:
    """A line a range of steps: the paper's plotted reduction of rollout time, and ours."""
    plotted_names = {"none": "verl", "das": "das", "unlimited": "das_unlimited"}
    lines = []
    for first, last in ranges:
        plotted = ""
        if paper is not None:
            mine, other = (paper["arms"][plotted_names[name]]["seconds"][first - 1 : last] for name in (with_, without))
            if len(mine) == len(other) == last - first + 1:
                plotted = percent(1 - sum(mine) / sum(other))
        ours = ""
        if last <= len(arms[with_]):
            ours = percent(1 - seconds(arms[with_], first, last) / seconds(arms[without], first, last))
        lines.append(Line(f"{with_} against {without}, steps {first}-{last}: reduction", plotted, "", ours))
    return lines


def run_arms(
    at: Setting, names: Sequence[str], works: Sequence[Workload], epoch: int, most: int, title: str
) -> dict[str, list[Step]]:
    """Steps of each arm: none, das (the configured budget), unlimited."""
    budgets = {"none": None, "das": at.budget, "unlimited": {"name": "unlimited", "tokens": 64}}
    arms = {}
    for name in names:
        arms[name] = arm(works, at.times, 256, budgets[name], epoch, most)
        tokens, passes = sum(s.tokens for s in arms[name]), sum(s.passes for s in arms[name])
        total = seconds(arms[name], 1, len(works))
        at.say.note(f"{title}, {name}: {total / len(works):.1f} s a step, {tokens / passes:.2f} tokens/pass")
    return arms


def price_lists(at: Setting) -> Section:
    """The maths step with other times of a pass. One of an epoch's nine batches of problems, epoch after epoch: batches
    hardly know of each other."""
    batch, epochs = int(at.task.maths_batch), -(-int(at.task.maths_steps) // 9)
    works = steps_of(at.synthesis.make(batch, 16 * epochs, 16384, seed=1), epochs, batch, 16)
    weight = np.array([min(9, int(at.task.maths_steps) - 9 * epoch) for epoch in range(epochs)])  # steps of each epoch
    arms = at.published["das_fig10_time"]["data"]["arms"]
    kept = at.published["er_constants"]["data"]["Qwen2.5-7B"]["kappa_eff"]  # bytes of keys and values read a token
    reading = ContextRead(at.times.form, kept / (GPUS["H100"].bandwidth * BANDWIDTH_SHARE))
    roofline = derived("H100", "7B")
    longest = np.array([int(work.lengths.max()) for work in works])
    lists: list[tuple[str, Form, bool]] = [
        ("Fig 8", at.times.form, False),
        ("Fig 8 + keys and values read", reading, False),
        ("the same + what Fig 10 takes beyond", reading, True),
        ("roofline of an H100 (derived)", roofline, False),
        ("the roofline + what Fig 10 takes beyond", roofline, True),
        ("Fig 8, drafts for nothing", CostScaled(at.times.form, 0.0), False),
    ]
    lines, drawn = [], {}
    for name, form, filled in lists:
        free = isinstance(form, CostScaled)
        times = Times(form, draft_request=0.0 if free else at.times.draft_request)
        none = np.array([step.rollout_s for step in arm(works, times, 256, None, 1, 16384)])
        if filled:  # passes of the paper's plain rollouts, had its longest response 16,384 tokens
            beyond = float(np.mean(arms["verl"]["seconds"])) / 16384 - float((weight @ none) / (weight @ longest))
            times = replace(times, host=max(0.0, beyond))
            none = none + longest * times.host
            name += f", {1e3 * beyond:.1f} ms a pass"
        steps = arm(works, times, 256, {"name": "fixed", "tokens": 16} if free else at.budget, 1, 16384)
        das = np.array([step.rollout_s for step in steps])
        saved = " / ".join(percent(1 - a / b) for a, b in zip(das, none, strict=True))
        tokens = weight @ [s.tokens for s in steps] / (weight @ [s.passes for s in steps])
        found = f"{saved}; {percent(1 - float((weight @ das) / (weight @ none)))} in all, {tokens:.2f} tokens a pass"
        lines.append(Line(f"{name}: {1e3 * float((weight @ none) / (weight @ longest)):.1f} ms", replay=found))
        drawn[name] = np.arange(1, epochs + 1), 100 * (1 - das / none)
        at.say.note(f"maths, {name}: {found}")
    totals = {
        name: [sum(arms[name]["seconds"][9 * epoch : 9 * epoch + 9]) for epoch in range(4)] for name in ("das", "verl")
    }
    plotted = [1 - a / b for a, b in zip(totals["das"], totals["verl"], strict=True)]
    drawn["DAS (paper)"] = np.arange(1, 5), 100 * np.array(plotted)
    whole = percent(1 - sum(totals["das"]) / sum(totals["verl"]))
    theirs = f"{' / '.join(percent(value) for value in plotted)}; {whole} in all"
    lines.insert(0, Line("the paper: 27.1 ms at least", theirs, "more than 50 %"))
    figure = curves(
        at.folder / "das_reduction.png",
        drawn,
        "epoch",
        "reduction of rollout time (%)",
        "Fig 10 by price of a pass",
    )
    return Section(
        "Fig 10 under other prices of a pass",
        f"{batch} problems x 16 on one engine, once an epoch. Reduction of rollout time in epochs 1 / 2 / 3 / 4, and "
        f"in all {at.task.maths_steps} steps; mean time of a pass without drafts. Drafts for nothing: fixed 16.",
        lines,
        PRICES,
        [figure],
    )


def maths(at: Setting) -> list[Section]:
    """Figs 10, 4, 1: 128 x 16 on 8 engines, so 16 problems x 16 on one; 1,209 / 128 = 9 steps an epoch."""
    steps, batch = int(at.task.maths_steps), int(at.task.maths_batch)
    works = steps_of(at.synthesis.make(9 * batch, 16 * -(-steps // 9), 16384, seed=1), steps, batch, 16)
    arms = run_arms(at, ("none", "das"), works, 9, 16384, "maths")
    paper = at.published["das_fig10_time"]["data"]
    lines = reductions(arms, paper, RANGES, "das")
    lines[4] = replace(lines[4], claimed="more than 50 %")
    lines[-1] = replace(lines[-1], engine=engine_reduction(at.task.engine_run, "das", "none"))
    count = np.arange(1, steps + 1)
    figures = [
        curves(
            at.folder / "das_fig10.png",
            {
                "none": (count, [s.rollout_s for s in arms["none"]]),
                "das": (count, [s.rollout_s for s in arms["das"]]),
                "veRL (paper)": (paper["arms"]["verl"]["step"], paper["arms"]["verl"]["seconds"]),
                "DAS (paper)": (paper["arms"]["das"]["step"], paper["arms"]["das"]["seconds"]),
            },
            "training step",
            "rollout time (s)",
            "Fig 10: maths",
        ),
    ]
    lengths = np.concatenate([work.lengths for work in works])
    accepted = Line(
        "accepted a round, das, first / last 9 steps (Fig 4: steps 0-100 / 700-800)",
        "2.5 / 4.3",
        "",
        " / ".join(
            f"{sum(s.num_accepted for s in part) / sum(s.passes for s in part):.2f}"
            for part in (arms["das"][:9], arms["das"][-9:])
        ),
    )
    line = {name: arms[name][0].timelines[0] for name in ("none", "das")}
    ends = {name: line[name]["time_s"][-1] for name in line}
    shape = {n: (line[n]["time_s"] / ends["none"], line[n]["live"] / line[n]["live"][0]) for n in line}
    one = at.published["das_fig1"]["data"]
    shape |= {
        "veRL (paper)": (np.array(one["time"]) / 220, np.array(one["verl"]) / 128),
        "DAS (paper)": (np.array(one["das_time"]) / 220, np.array(one["das"]) / 128),
    }
    fig1 = curves(
        at.folder / "das_fig1.png", shape, "time / rollout time without speculation", "share of requests live", "Fig 1"
    )
    return [
        Section(
            f"Fig 10 and Fig 4: maths, {steps} steps",
            f"{batch} problems x 16 on one engine of 8, 9 steps an epoch, budget {at.budget['name']}, responses of "
            f"{lengths.mean():.0f} tokens on average, {lengths.max()} at most.",
            [*lines, accepted],
            FIG10,
            figures,
        ),
        Section(
            "Fig 1: live requests in one rollout",
            "Step 1 of the above; both axes relative.",
            [Line("end of DAS / end without", f"{110 / 220:.2f}", "", f"{ends['das'] / ends['none']:.2f}")],
            figures=[fig1],
        ),
        price_lists(at),
    ]


def code(at: Setting) -> list[Section]:
    """Figs 11-13: 32 x 8 on 16 engines, so 2 problems x 8 on one; no problem comes twice."""
    steps = int(at.task.code_steps)
    sections_ = []
    for title, key, batch, most, names in (
        ("Figs 11 and 12: code", "das_fig12", 2, 16384, ("none", "das", "unlimited")),
        ("Fig 13 left: 8k cap", "das_fig13_8k", 2, 8192, ("none", "das")),
        ("Fig 13 right: batch 16", "das_fig13_batch16", 1, 16384, ("none", "das")),
    ):
        whole = at.synthesis.make(steps * batch, 8, most, seed=2)
        works = steps_of(whole, steps, batch, 8)
        arms = run_arms(at, names, works, steps, most, title)
        paper = at.published[key]["data"]
        plotted = min(len(series["seconds"]) for series in paper["arms"].values())
        lines = reductions(arms, paper, [(1, min(steps, plotted))], "das")
        claims = {"das_fig12": "about 25 %", "das_fig13_8k": "over 30 %", "das_fig13_batch16": "similar"}
        lines[0] = replace(lines[0], claimed=claims[key])
        if "unlimited" in names:
            lines += reductions(arms, paper, [(1, min(steps, plotted))], "unlimited")
            against = reductions(arms, paper, [(1, min(steps, plotted))], "das", "unlimited")
            measured = engine_reduction(at.task.engine_run, "das", "das_unlimited")
            lines += [replace(line, claimed="up to 15 %", engine=measured) for line in against]
        tokens = {n: sum(s.tokens for s in a) / sum(s.passes for s in a) for n, a in arms.items() if n != "none"}
        lines.append(Line("tokens per pass", replay=", ".join(f"{n} {t:.2f}" for n, t in tokens.items())))
        sections_.append(
            Section(
                title,
                f"{batch} problems x 8 on one engine of 16, {steps} steps, no problem twice, at most {most} tokens. "
                "The text is recorded maths: no recorded code was at hand.",
                lines,
                CODE,
            )
        )
    return sections_


def latency(points: dict[str, Any]) -> Section:
    """Fig 8: the affine fit of Eq 1."""
    tokens, times = np.array(points["tokens"], float), np.array(points["latency_ms"]) / 1e3
    passes = Passes(tokens, tokens, np.zeros(len(tokens)), times)
    lines = []
    for fit in points["fits"]:
        first, last = fit["token_range"]
        part = passes[tokens <= last]
        line = fit_affine(part, np.ones(len(part)))
        lines.append(
            Line(
                f"c_base ms, c_tok us over {first}-{last} tokens; mean error",
                f"{fit['c_base_ms']}, {fit['c_tok_us']}",
                "error about 12 %",
                f"{line.c_base * 1e3:.1f}, {line.c_tok * 1e6:.0f}; {percent(relative_error(line, part))}",
            )
        )
    return Section("Fig 8: latency of a pass", "Least squares of relative errors through the digitised points.", lines)
