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
from das.budget import make_budget
from das.budget.latency_forms import Passes, fit_affine, relative_error
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, roll_out
from das.replay.engine import Engine, PlainEngine
from das.replay.scale import Dearer
from das.replay.synthesis import Synthesis
from das.replay.text_engine import TextEngine
from das.replay.times import Table, Times
from das.replay.workload import Workload, workload
from experiments.errors import UserError
from experiments.progress import Progress
from experiments.recorded import grouped, read_rollouts
from experiments.setup import plain

PREFACE = (
    "Text: recorded chains of thought (no recording of the paper's own runs exists); where a trace has too few "
    "responses of a problem, further ones are synthetic (das/replay/synthesis.py). Latencies: points of the paper's "
    "Fig 8, digitised. One engine of the paper's 8 or 16 is simulated with its share of problems. Reduction = 1 - "
    "with / without speculation. Figures of the paper carry no time unit; seconds are assumed."
)

FREE = "drafts for nothing"  # 16 tokens at every pass, at no price


def sections(
    task: DictConfig, budget: DictConfig, published: dict[str, Any], folder: Path, say: Progress
) -> list[Section]:
    """All sections; figures go to `folder`."""
    recorded = sources(Path(task.traces), int(task.problems))
    points = published["das_fig8"]["data"]
    times = Times(
        Table(tuple(points["tokens"]), tuple(t / 1e3 for t in points["latency_ms"])), draft_request=task.draft_us * 1e-6
    )
    synthesis = Synthesis(recorded, float(task.run_length))
    found = [latency(points)]
    for part in (maths, code, cold_start, scope_and_window):
        found += part(task, plain(budget), synthesis, times, published, folder, say)
    return found


def sources(traces: Path, problems: int) -> Workload:
    """The first problems of each recorded trace of long chains of thought, each trace with token ids of its own."""
    names = ("areal_deepscaler_base", "areal_nemotron_base", "steer_r1d_qwen14b_pos0to3")
    files = [traces / f"{name}.jsonl.gz" for name in names]
    if not all(file.exists() for file in files):
        raise UserError(f"task.traces={traces}: the recorded traces {', '.join(names)} are not there")
    ids, texts, offset = [], [], 0
    for name, file in zip(names, files, strict=True):
        (whole,) = read_rollouts(file)
        chosen = set(list(dict.fromkeys(whole.problems))[:problems])
        for i, problem in enumerate(whole.problems):
            if problem in chosen:
                ids.append(f"{name}/{problem}")
                texts.append(whole.response(i) + offset)
        offset += int(whole.tokens.max()) + 1
    return workload(ids, texts)


def steps_of(whole: Workload, steps: int, batch: int, group: int) -> list[Workload]:
    """Training steps over a workload whose problems' responses lie in a row: epochs of batches of problems."""
    members: dict[str, list[int]] = {}
    for i, problem in enumerate(whole.problems):
        members.setdefault(problem, []).append(i)
    problems = list(members.values())
    per_epoch = len(problems) // batch
    found = []
    for step in range(steps):
        epoch, at = divmod(step, per_epoch)
        chosen = problems[at * batch : (at + 1) * batch]
        found.append(whole.part([i for ids in chosen for i in ids[epoch * group : (epoch + 1) * group]]))
    return found


def arm(
    works: Sequence[Workload],
    times: Times,
    slots: int,
    budget: dict[str, Any] | None,
    epoch: int,
    most: int,
    **drafter: Any,
) -> list[Step]:
    """Steps of an arm on one engine; budget None: no speculation. epoch: steps until the drafter's clock moves."""
    engine: Engine = PlainEngine(times, slots)
    if budget is not None:
        history = HistoryDrafter(**{"min_prob": 0.02, **drafter})
        engine = TextEngine(times, slots, history, make_budget(budget), most)
    return [roll_out(work, [engine], [range(len(work))], (i + 1) // epoch) for i, work in enumerate(works)]


def seconds(steps: Sequence[Step], first: int, last: int) -> float:
    return sum(step.rollout_s for step in steps[first - 1 : last])


def engine_reduction(run: str | None, with_: str, without: str) -> str:
    """Reduction of rollout time in a comparison on the real engine, from its metrics; "" without a run."""
    if run is None:
        return ""
    total: dict[str, float] = {}
    for row in read.metrics(Path(run)):
        total[row["arm"]] = total.get(row["arm"], 0.0) + row["rollout_s"]
    if not {with_, without} <= total.keys():
        raise UserError(f"task.engine_run={run}: arms {with_} and {without} are needed, it has {', '.join(total)}")
    return percent(1 - total[with_] / total[without])


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


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
    names: Sequence[str],
    works: Sequence[Workload],
    times: Times,
    slots: int,
    budget: dict[str, Any],
    epoch: int,
    most: int,
    say: Progress,
    title: str,
) -> dict[str, list[Step]]:
    budgets = {"none": None, "das": budget, "unlimited": {"name": "unlimited", "tokens": 64}}
    arms = {}
    for name in names:
        arms[name] = arm(works, times, slots, budgets[name], epoch, most)
        tokens, passes = sum(s.tokens for s in arms[name]), sum(s.passes for s in arms[name])
        total = seconds(arms[name], 1, len(works))
        say.note(f"{title}, {name}: {total / len(works):.1f} s a step, {tokens / passes:.2f} tokens/pass")
    return arms


def maths(
    task: DictConfig,
    budget: dict[str, Any],
    synthesis: Synthesis,
    times: Times,
    published: dict[str, Any],
    folder: Path,
    say: Progress,
) -> list[Section]:
    """Figs 10, 4, 1: 128 x 16 on 8 engines, so 16 problems x 16 on one; 1,209 / 128 = 9 steps an epoch."""
    steps, batch = int(task.maths_steps), int(task.maths_batch)
    epochs = -(-steps // 9)
    whole = synthesis.make(9 * batch, 16 * epochs, 16384, seed=1)
    works = steps_of(whole, steps, batch, 16)
    del whole
    arms = run_arms(("none", "das"), works, times, 256, budget, 9, 16384, say, "maths")
    free = Times(Dearer(times.form, 0.0))
    arms[FREE] = arm(works, free, 256, {"name": "fixed", "tokens": 16}, 9, 16384)
    paper = published["das_fig10_time"]["data"]
    lines = reductions(arms, paper, [(1, 1), (1, 9), (10, 18), (19, 27), (1, 24), (25, 30), (1, 30)], "das")
    lines[4] = replace(lines[4], claimed="more than 50 %")
    lines[-1] = replace(lines[-1], engine=engine_reduction(task.engine_run, "das", "none"))
    lines += reductions(arms, None, [(1, steps)], FREE)
    count = np.arange(1, steps + 1)
    figures = [
        curves(
            folder / "das_fig10.png",
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
        curves(
            folder / "das_reduction.png",
            {
                name: (
                    count,
                    [100 * (1 - a.rollout_s / b.rollout_s) for a, b in zip(arms[name], arms["none"], strict=True)],
                )
                for name in ("das", FREE)
            },
            "training step",
            "reduction of rollout time (%)",
            "What recorded text supports, epochs of 9 steps",
        ),
    ]
    lengths = np.concatenate([work.lengths for work in works])
    accepted = Line(
        "accepted a round, das, first / last 9 steps (Fig 4: steps 0-100 / 700-800)",
        "2.5 / 4.3",
        "",
        " / ".join(
            f"{sum(s.accepted for s in part) / sum(s.passes for s in part):.2f}"
            for part in (arms["das"][:9], arms["das"][-9:])
        ),
    )
    line = {name: arms[name][0].timelines[0] for name in ("none", "das")}
    ends = {name: line[name]["time_s"][-1] for name in line}
    shape = {n: (line[n]["time_s"] / ends["none"], line[n]["live"] / line[n]["live"][0]) for n in line}
    one = published["das_fig1"]["data"]
    shape |= {
        "veRL (paper)": (np.array(one["time"]) / 220, np.array(one["verl"]) / 128),
        "DAS (paper)": (np.array(one["das_time"]) / 220, np.array(one["das"]) / 128),
    }
    fig1 = curves(
        folder / "das_fig1.png", shape, "time / rollout time without speculation", "share of requests live", "Fig 1"
    )
    return [
        Section(
            f"Fig 10 and Fig 4: maths, {steps} steps",
            f"{batch} problems x 16 on one engine of 8, 9 steps an epoch, budget {budget['name']}, responses of "
            f"{lengths.mean():.0f} tokens on average, {lengths.max()} at most.",
            [*lines, accepted],
            "The paper saves 50 % from step 1 on; recorded text supports the curve in das_reduction.png: less in the "
            "first epoch, where only siblings and own text can be drafted from, more once problems come again. What "
            "limits it most is the batch: at 256 live requests Fig 8's price of a drafted token (28 us) is what an "
            "emitted one costs, so only likely ones pay. `drafts for nothing` is what 16 drafted tokens at every pass "
            "would save if verifying them were free: the paper's savings are near that, as if its engine verified for "
            "less than its own Fig 8 says. The text is the other limit: 2 to 3 tokens a pass with 16 drafted (cold "
            "start, below). Seconds differ because our responses are shorter than its own, and because Fig 8 at 256 "
            "live requests (15 ms) does not give the 28 ms a pass that 457 s for 16k tokens would need: what else its "
            "passes cost is not published.",
            figures,
        ),
        Section(
            "Fig 1: live requests in one rollout",
            "Step 1 of the above; both axes relative.",
            [Line("end of DAS / end without", f"{110 / 220:.2f}", "", f"{ends['das'] / ends['none']:.2f}")],
            figures=[fig1],
        ),
    ]


def code(
    task: DictConfig,
    budget: dict[str, Any],
    synthesis: Synthesis,
    times: Times,
    published: dict[str, Any],
    folder: Path,
    say: Progress,
) -> list[Section]:
    """Figs 11-13: 32 x 8 on 16 engines, so 2 problems x 8 on one; no problem comes twice."""
    steps = int(task.code_steps)
    sections_ = []
    for title, key, batch, most, names in (
        ("Figs 11 and 12: code", "das_fig12", 2, 16384, ("none", "das", "unlimited")),
        ("Fig 13 left: 8k cap", "das_fig13_8k", 2, 8192, ("none", "das")),
        ("Fig 13 right: batch 16", "das_fig13_batch16", 1, 16384, ("none", "das")),
    ):
        whole = synthesis.make(steps * batch, 8, most, seed=2)
        works = steps_of(whole, steps, batch, 8)
        arms = run_arms(names, works, times, 256, budget, steps, most, say, title)
        paper = published[key]["data"]
        plotted = min(len(series["seconds"]) for series in paper["arms"].values())
        lines = reductions(arms, paper, [(1, min(steps, plotted))], "das")
        claims = {"das_fig12": "about 25 %", "das_fig13_8k": "over 30 %", "das_fig13_batch16": "similar"}
        lines[0] = replace(lines[0], claimed=claims[key])
        if "unlimited" in names:
            lines += reductions(arms, paper, [(1, min(steps, plotted))], "unlimited")
            against = reductions(arms, paper, [(1, min(steps, plotted))], "das", "unlimited")
            measured = engine_reduction(task.engine_run, "das", "das_unlimited")
            lines += [replace(line, claimed="up to 15 %", engine=measured) for line in against]
        tokens = {n: sum(s.tokens for s in a) / sum(s.passes for s in a) for n, a in arms.items() if n != "none"}
        lines.append(Line("tokens per pass", replay=", ".join(f"{n} {t:.2f}" for n, t in tokens.items())))
        sections_.append(
            Section(
                title,
                f"{batch} problems x 8 on one engine of 16, {steps} steps, no problem twice, at most {most} tokens. "
                "The text is recorded maths: no recorded code was at hand.",
                lines,
                "DeepCoder's 24K problems do not come twice in 50 steps, so both gain from own and sibling text alone. "
                "Ours gain more: with 16 live requests a pass costs its fixed price, drafts are nearly free, and the "
                "replay has no time of the host beside Fig 8. What the budget saves of unlimited drafting is the "
                "paper's.",
            )
        )
    return sections_


def cold_start(
    task: DictConfig,
    budget: dict[str, Any],
    synthesis: Synthesis,
    times: Times,
    published: dict[str, Any],
    folder: Path,
    say: Progress,
) -> list[Section]:
    """What each source of drafts is worth, epoch by epoch; and trees that are warm from the start."""
    works = grouped(synthesis.make(int(task.ablation_problems), 32, 16384, seed=3), 8, 0)
    fixed = {"name": "fixed", "tokens": 16}
    none = arm(works, times, 256, None, 1, 16384)
    variants: dict[str, dict[str, Any]] = {
        "own text only": {"scope": "own"},
        "own text and siblings": {"scope": "siblings"},
        "the same, and other problems": {"window": 1},
        "+ history of past epochs (the default)": {},
    }
    lines = []
    for name, options in variants.items():
        steps = arm(works, times, 256, fixed, 1, 16384, **options)
        lines.append(_by_epoch(name, steps, none))
        say.note(f"cold start, {name}: {lines[-1].replay}")
    warm = arm([works[-1], *works[:-1]], times, 256, fixed, 1, 16384)[1:]
    lines.append(_by_epoch("warm: another epoch was seen before the first", warm, none[:-1]))
    return [
        Section(
            "Cold start: where do drafts come from?",
            f"{task.ablation_problems} problems x 8 x 4 epochs, fixed drafts of 16. Tokens per pass in each epoch, "
            "and the reduction of rollout time over all of them. The paper has no such ablation.",
            lines,
            "Tokens per pass come from own text first, then siblings, then history, which a warm start gives to the "
            "first epoch too. Fixed drafts of 16 save little time at 64 live requests: most of what they draft is "
            "wasted.",
        )
    ]


def _by_epoch(name: str, steps: Sequence[Step], none: Sequence[Step]) -> Line:
    saved = 1 - sum(s.rollout_s for s in steps) / sum(s.rollout_s for s in none)
    return Line(name, replay=" ".join(f"{s.tokens_per_pass:.2f}" for s in steps) + f", {percent(saved)}")


def scope_and_window(
    task: DictConfig,
    budget: dict[str, Any],
    synthesis: Synthesis,
    times: Times,
    published: dict[str, Any],
    folder: Path,
    say: Progress,
) -> list[Section]:
    """Fig 6 on distinct problems; Fig 7 on a trace with many samples of a problem, so that no text is synthetic."""
    (whole,) = read_rollouts(Path(task.traces) / "steer_r1d_qwen14b_pos0to3.jsonl.gz")
    chosen = list(dict.fromkeys(whole.problems))[: int(task.window_problems)]
    mine = whole.part([i for i, problem in enumerate(whole.problems) if problem in chosen])
    works = [work for work in grouped(mine, 8, 0) if len(work) == 8 * len(chosen)][: int(task.window_epochs)]
    fixed = {"name": "fixed", "tokens": 16}

    def accepted(works: Sequence[Workload], **options: Any) -> str:
        steps = arm(works, times, 256, fixed, 1, 16384, **options)[len(works) // 2 :]
        found = f"{sum(s.accepted for s in steps) / sum(s.passes for s in steps):.2f}"
        say.note(f"accepted a round, {options}: {found}")
        return found

    distinct = grouped(synthesis.make(int(task.ablation_problems), 32, 16384, seed=3), 8, 0)
    scopes = {scope: accepted(distinct, scope=scope) for scope in ("problem", "problem+request", "global+request")}
    six, seven = published["das_fig6"]["data"]["accepted"], published["das_fig7"]["data"]["accepted"]
    every = accepted(works, window=1000)
    setting = (
        f"{task.window_problems} problems x 8 x {len(works)} epochs of recorded text (R1-Distill-Qwen-14B); accepted "
        "tokens a round in the second half of the epochs, fixed drafts of 16."
    )
    return [
        Section(
            "Fig 6: scope",
            f"{task.ablation_problems} problems x 8 x 4 epochs, as for the cold start; accepted tokens a round in the "
            "last two epochs, fixed drafts of 16.",
            [
                Line("problem only", f"{six['problem_only']['mean']}", "", scopes["problem"]),
                Line("problem + request", "3.05 (gap at most .03)", "", scopes["problem+request"]),
                Line("global + request", f"{six['global_plus_request']['mean']}", "", scopes["global+request"]),
            ],
            "The request's own text is worth more here than there.",
        ),
        Section(
            "Fig 7: window, in epochs",
            setting,
            [
                *(
                    Line(
                        f"window {w}",
                        str(seven[f"window_{w}"]["mean"]) if f"window_{w}" in seven else "",
                        "",
                        accepted(works, window=w),
                    )
                    for w in (1, 4, 8)
                ),
                Line("all", str(seven["window_all"]["mean"]), "", every),
            ],
            "Recorded text of one policy: nothing goes stale, so a longer window can only help. Levels differ: the "
            "paper's steps 400-600 follow hundreds of updates that make a policy repeat itself.",
        ),
    ]


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
                "drafting form: see docs/benchmarks.md",
            )
        )
    return Section("Fig 8: latency of a pass", "Least squares of relative errors through the digitised points.", lines)
