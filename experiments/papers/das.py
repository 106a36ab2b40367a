"""DAS (arXiv 2511.13841): its figures, replayed on recorded chains of thought with the paper's own latencies (Fig 8).

One engine is simulated, with its share of the problems. That is enough because engines are alike and the siblings of a
problem stay together. Rollout times of maths (Figs 10, 4, 1) and code (Figs 11-13) come first, then Fig 6, and Fig 10
at other times of a pass (prices) than those of Fig 8.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, curves, percent
from das.budget.latency import Array
from das.drafter import HistoryDrafter
from experiments.run.processes import in_processes
from experiments.run.progress import Progress
from experiments.settings.checked import Settings
from experiments.simulate.engine import Step, roll_out
from experiments.simulate.gpu_times import KEYS, gpu_times
from experiments.simulate.rollouts import chains_of_thought, grouped
from experiments.simulate.text_engine import Arm
from experiments.simulate.times import Form, Passes, PassTimes, Table, Times, fit_affine, relative_error
from experiments.simulate.workload import Synthesis, Workload

MAX_NUM_SEQS = 256  # requests that an engine decodes at once (paper: 2,048 responses on 8 engines)
MAX_TOKENS = 16384  # most tokens of a response (paper)
STEPS_PER_EPOCH = 9  # steps of an epoch of maths: 1,209 problems / 128 per step
RANGES = ((1, 1), (1, 9), (10, 18), (19, 27), (1, 24), (25, 30), (1, 30))  # steps (first, last) of Fig 10 to compare
PREFACE = (
    "Text: recorded chains of thought, because no recording of the paper's own runs exists. Where a trace has too few "
    "responses of a problem, further ones are synthetic (experiments/simulate/workload.py). Latencies: points of the "
    "paper's Fig 8, digitised, unless a section says otherwise. One engine of the paper's 8 or 16 is simulated, with "
    "its share of the problems. Reduction = 1 - time with speculation / time without. The paper's figures have no unit "
    "of time; seconds are assumed."
)
FIG10 = (
    "The paper saves 50 % from step 1 on. Recorded text at Fig 8's prices supports less, least in the first epoch, as "
    "drafts can only come from the response itself and its siblings. The price limits it most: Fig 8 charges 28 us for "
    "every token of a pass, so at 256 live requests a drafted token costs as much as an emitted one. Fig 8 cannot be "
    "the whole price of the paper's engine: by it a pass of 256 requests takes 15 ms, but 443.6 s per step are 27 ms "
    "per pass even if the longest response had all 16,384 tokens (other prices: below). Seconds differ also because "
    "our responses are shorter than the paper's."
)
CODE = (
    "DeepCoder has 24K problems, so none comes twice in 50 steps, and both gain from the response's own text and its "
    "siblings alone. Ours gain more: with 16 live requests a pass costs its fixed price, and drafts are nearly free. "
    "Fig 8 leaves out what an engine pays for speculating at all, and our text is maths, not code. Which of the two "
    "explains the difference cannot be told from here."
)
PRICES = (
    "Fig 8 has one price for a live request and for a drafted token. Costs of a pass that drafted tokens do not add to "
    "make them cheap by comparison: the keys and values of the context are read once, however many tokens are "
    "verified (Fig 8 does not say at which context it was timed), and by physics a pass of an H100 also has the host's "
    "time. There das's arm plans the drafted tokens of a pass before it knows the drafts, so some rows are "
    "placeholders, and the device waits while it drafts; the last line leaves out the wait. Nothing was fitted."
)
FIXED = {"name": "fixed", "tokens": 16}  # budget of Fig 6


@dataclass(frozen=True)
class Setting:
    """The settings and inputs that the simulations of all figures share."""

    task: Any
    budget: dict[str, Any]
    synthesis: Synthesis
    times: Times  # times of a pass by the paper's Fig 8
    published: dict[str, Any]  # experiments/papers/published.json
    folder: Path  # for figures
    progress: Progress


def sections(task: Any, budget: Settings, published: dict[str, Any], folder: Path, progress: Progress) -> list[Section]:
    """Simulate the paper's experiments. Returns all sections of the report; their figures are in `folder`."""
    recorded = chains_of_thought(Path(task.traces), int(task.problems))
    points = published["das_fig8"]["data"]
    times = Times(
        Table(tuple(points["tokens"]), tuple(t / 1e3 for t in points["latency_ms"])), draft_request=task.draft_us * 1e-6
    )
    synthesis = Synthesis(recorded, float(task.run_length))
    setting = Setting(task, dict(budget), synthesis, times, published, folder, progress)
    figures: tuple[Callable[[Setting], list[Section]], ...] = (maths, prices, code, draft_scope)
    parts = in_processes(
        [partial(part, setting) for part in figures],
        lambda done: progress.note(f"{done} of {len(figures)} parts are simulated"),
    )
    return [pass_latency(points), *chain(*parts)]


def pass_latency(points: dict[str, Any]) -> Section:
    """Make the section of Fig 8: fit the paper's Eq 1, an affine time of a pass, to the points of the digitised
    figure."""
    tokens, times = np.array(points["tokens"], float), np.array(points["latency_ms"]) / 1e3
    passes = Passes(tokens, tokens, np.zeros(len(tokens)), times)
    lines = []
    for fit in points["fits"]:
        first, last = fit["token_range"]
        part = passes[tokens <= last]
        form = fit_affine(part)
        lines.append(
            Line(
                f"c_base ms, c_tok us over {first}-{last} tokens; mean error",
                f"{fit['c_base_ms']}, {fit['c_tok_us']}",
                "error about 12 %",
                f"{form.c_base * 1e3:.1f}, {form.c_tok * 1e6:.0f}; {percent(relative_error(form, part))}",
            )
        )
    return Section("Fig 8: latency of a pass", "Least squares of relative errors, through the digitised points.", lines)


# ---- rollout times ----


def training_steps(work: Workload, steps: int, batch: int, group: int) -> list[Workload]:
    """Cut a workload into training steps. Each has the next `group` responses to each of `batch` problems."""
    problems = list(work.members().values())
    per_epoch = len(problems) // batch
    parts = []
    for step in range(steps):
        epoch, number = divmod(step, per_epoch)
        chosen = problems[number * batch : (number + 1) * batch]
        parts.append(work.part([i for ids in chosen for i in ids[epoch * group : (epoch + 1) * group]]))
    return parts


def simulated(
    arm: Arm, works: Sequence[Workload], times: PassTimes, steps_per_epoch: int = 1, max_tokens: int = MAX_TOKENS
) -> list[Step]:
    """Simulate the steps of an arm on one engine of the paper."""
    return roll_out(arm.engine(times, MAX_NUM_SEQS, max_tokens), works, steps_per_epoch)


def reductions(
    arms: dict[str, list[Step]],
    paper: dict[str, Any],
    ranges: Sequence[tuple[int, int]],
    with_: str,
    without: str = "none",
) -> list[Line]:
    """Return a report line for each range of steps: the reduction of rollout time that the paper plots, and ours.

    paper: the digitised figure. with_: the arm with drafts, compared with the arm `without`.
    """
    names = {"none": "verl", "das": "das", "unlimited": "das_unlimited"}  # our name -> the paper's name
    plotted = [paper["arms"][names[arm]]["seconds"] for arm in (with_, without)]
    ours = [[step.rollout_s for step in arms[arm]] for arm in (with_, without)]

    def reduction(curves: list[list[float]], first: int, last: int) -> str:
        """The reduction over these steps; "" if a curve does not have them."""
        drafted, plain = (sum(seconds[first - 1 : last]) for seconds in curves)
        return percent(1 - drafted / plain) if min(map(len, curves)) >= last else ""

    what = f"{with_} against {without}, steps"
    return [Line(f"{what} {a}-{b}: reduction", reduction(plotted, a, b), "", reduction(ours, a, b)) for a, b in ranges]


def simulate_arms(
    setting: Setting, names: Sequence[str], works: Sequence[Workload], steps_per_epoch: int, max_tokens: int, title: str
) -> dict[str, list[Step]]:
    """Simulate arms. Returns arm -> its steps. Prints a line for each arm. names: which of none, das (with the
    configured budget) and unlimited. works: the responses of each step. max_tokens: limit of a response. title: begins
    the lines."""
    known = {"none": Arm(), "das": Arm(setting.budget), "unlimited": Arm({"name": "unlimited", "tokens": 64})}
    arms = {}
    for name in names:
        arms[name] = simulated(known[name], works, setting.times, steps_per_epoch, max_tokens)
        mean, tokens = np.mean([step.rollout_s for step in arms[name]]), per_pass(arms[name], "tokens")
        setting.progress.note(f"{title}, {name}: {mean:.1f} s per step, {tokens:.2f} tokens/pass")
    return arms


def per_pass(steps: Sequence[Step], count: str) -> float:
    """Return tokens or num_accepted per target pass of a request, over all steps."""
    return sum(getattr(step, count) for step in steps) / sum(step.passes for step in steps)


def maths(setting: Setting) -> list[Section]:
    """Make the sections of Figs 10, 4 and 1. The paper has 128 problems x 16 responses on 8 engines. One engine is
    simulated, with 16 x 16."""
    steps, batch = int(setting.task.maths_steps), int(setting.task.maths_batch)
    epochs = -(-steps // STEPS_PER_EPOCH)
    made = setting.synthesis.make(STEPS_PER_EPOCH * batch, 16 * epochs, MAX_TOKENS, seed=1)
    works = training_steps(made, steps, batch, 16)
    arms = simulate_arms(setting, ("none", "das"), works, STEPS_PER_EPOCH, MAX_TOKENS, "maths")
    return [rollout_times(setting, works, arms), live_requests(setting, arms)]


def rollout_times(setting: Setting, works: Sequence[Workload], arms: dict[str, list[Step]]) -> Section:
    """Make the section of Figs 10 and 4: the rollout time of every step, and the accepted tokens."""
    steps, task = len(works), setting.task
    paper = setting.published["das_fig10_time"]["data"]
    lines = reductions(arms, paper, RANGES, "das")
    lines[4] = replace(lines[4], claimed="more than 50 %")
    first_and_last = (arms["das"][:STEPS_PER_EPOCH], arms["das"][-STEPS_PER_EPOCH:])
    ours = " / ".join(f"{per_pass(part, 'num_accepted'):.2f}" for part in first_and_last)
    what = "accepted per pass, das, first / last 9 steps (Fig 4: steps 0-100 / 700-800)"
    numbers, papers = np.arange(1, steps + 1), {"veRL (paper)": "verl", "DAS (paper)": "das"}
    drawn = {name: (numbers, [step.rollout_s for step in arms[name]]) for name in ("none", "das")}
    drawn |= {name: (paper["arms"][of]["step"], paper["arms"][of]["seconds"]) for name, of in papers.items()}
    axes = ("training step", "rollout time (s)", "Fig 10: maths")
    figure = curves(setting.folder / "das_fig10.png", drawn, *axes)
    lengths = np.concatenate([work.lengths for work in works])
    return Section(
        f"Fig 10 and Fig 4: maths, {steps} steps",
        f"{task.maths_batch} problems x 16 on one engine of 8, 9 steps per epoch, budget {setting.budget['name']}, "
        f"responses of {lengths.mean():.0f} tokens on average, {lengths.max()} at most.",
        [*lines, Line(what, "2.5 / 4.3", "", ours)],
        FIG10,
        [figure],
    )


def live_requests(setting: Setting, arms: dict[str, list[Step]]) -> Section:
    """Make the section of Fig 1: the number of live requests over time, in the first step."""
    timelines = {name: arms[name][0].timelines[0] for name in ("none", "das")}
    ends = {name: timeline["time_s"][-1] for name, timeline in timelines.items()}
    drawn = {
        name: (timeline["time_s"] / ends["none"], timeline["live"] / timeline["live"][0])
        for name, timeline in timelines.items()
    }
    paper = setting.published["das_fig1"]["data"]
    drawn |= {
        "veRL (paper)": (np.array(paper["time"]) / 220, np.array(paper["verl"]) / 128),
        "DAS (paper)": (np.array(paper["das_time"]) / 220, np.array(paper["das"]) / 128),
    }
    axes = ("time / rollout time without speculation", "share of requests live", "Fig 1")
    figure = curves(setting.folder / "das_fig1.png", drawn, *axes)
    return Section(
        "Fig 1: live requests in one rollout",
        "Step 1 of the section above. Both axes are relative.",
        [Line("end of DAS / end without", f"{110 / 220:.2f}", "", f"{ends['das'] / ends['none']:.2f}")],
        figures=[figure],
    )


def code(setting: Setting) -> list[Section]:
    """Make the sections of Figs 11-13. Each of the paper's 16 engines has 2 problems x 8 responses in a step, always
    new problems."""
    both = ("none", "das")
    return [
        code_section(setting, "Figs 11 and 12: code", "das_fig12", "about 25 %", 2, 16384, (*both, "unlimited")),
        code_section(setting, "Fig 13 left: 8k cap", "das_fig13_8k", "over 30 %", 2, 8192, both),
        code_section(setting, "Fig 13 right: batch 16", "das_fig13_batch16", "similar", 1, 16384, both),
    ]


def code_section(
    setting: Setting, title: str, figure: str, claimed: str, batch: int, max_tokens: int, names: Sequence[str]
) -> Section:
    """Make the section of a figure about code. figure: its key in published.json. claimed: the claim in the paper's
    text.

    batch: problems per step on one engine. names: the arms.
    """
    steps = int(setting.task.code_steps)
    works = training_steps(setting.synthesis.make(steps * batch, 8, max_tokens, seed=2), steps, batch, 8)
    arms = simulate_arms(setting, names, works, steps, max_tokens, title)
    paper = setting.published[figure]["data"]
    plotted_steps = min(len(series["seconds"]) for series in paper["arms"].values())
    ranges = [(1, min(steps, plotted_steps))]
    lines = [replace(line, claimed=claimed) for line in reductions(arms, paper, ranges, "das")]
    if "unlimited" in names:
        lines += reductions(arms, paper, ranges, "unlimited")
        against_unlimited = reductions(arms, paper, ranges, "das", "unlimited")
        lines += [replace(line, claimed="up to 15 %") for line in against_unlimited]
    drafting = [f"{name} {per_pass(arms[name], 'tokens'):.2f}" for name in names if name != "none"]
    lines.append(Line("tokens per pass", replay=", ".join(drafting)))
    return Section(
        title,
        f"{batch} problems x 8 on one engine of 16, {steps} steps, no problem twice, at most {max_tokens} tokens. The "
        "text is recorded maths, because no recorded code was at hand.",
        lines,
        CODE,
    )


# ---- Fig 6: from which texts drafts come ----


class OneProblem(HistoryDrafter):
    """Drafts from the texts of all problems alike: they count as one problem."""

    def __init__(self) -> None:
        super().__init__(cross_problem_tokens=0)

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        super().begin(request, "all", prompt, seed)


def draft_scope(setting: Setting) -> list[Section]:
    """Make the section of Fig 6: compare drafts from the problem's texts alone, from these and a few of other problems,
    and from the texts of all problems."""
    paper = setting.published["das_fig6"]["data"]["accepted"]
    # Four epochs, each with 8 responses to each problem.
    works = grouped(setting.synthesis.make(int(setting.task.scope_problems), 32, MAX_TOKENS, seed=3), 8)
    drafters: dict[str, Callable[[], HistoryDrafter]] = {
        "problem": partial(HistoryDrafter, cross_problem_tokens=0),
        "default": HistoryDrafter,
        "global": OneProblem,
    }
    accepted = {}
    for name, drafter in drafters.items():
        last_half = simulated(Arm(FIXED, drafter), works, setting.times)[len(works) // 2 :]
        accepted[name] = f"{per_pass(last_half, 'num_accepted'):.2f}"
        setting.progress.note(f"accepted per pass, scope {name}: {accepted[name]}")
    section = Section(
        "Fig 6: scope",
        f"{setting.task.scope_problems} problems x 8 x 4 epochs; accepted tokens per pass in "
        "the last two epochs, fixed drafts of 16.",
        [
            Line("problem + request", "3.05 (gap at most .03)", "", accepted["problem"]),
            Line("the same, and a little of other problems (the default)", "", "", accepted["default"]),
            Line("global + request", f"{paper['global_plus_request']['mean']}", "", accepted["global"]),
        ],
        "Every drafter here sees the request's own text. The paper's drafter of the problem alone "
        f"({paper['problem_only']['mean']}) does not.",
    )
    return [section]


# ---- Fig 10 at other prices of a pass ----


@dataclass(frozen=True)
class ContextRead:
    """A latency form that adds to the time of `form` the time to read the keys and values of all context once."""

    form: Form
    token: float  # seconds for each token of context

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live, tokens, context) + self.token * context


def by_price(setting: Setting) -> dict[str, tuple[PassTimes, PassTimes, Arm]]:
    """Return by price the times of passes without drafts, and with those of an arm, and this arm. The paper's own are
    the first."""
    fig8, h100, arm = setting.times, gpu_times("H100", "7B"), Arm(setting.budget)
    token = h100.model.kv_bytes / (h100.gpu.bandwidth * KEYS)
    read = replace(fig8, form=ContextRead(fig8.form, token))
    stock, ahead = replace(h100, das=False), replace(arm, ahead=True)
    return {
        "Fig 8": (fig8, fig8, arm),
        "Fig 8 + keys and values read": (read, read, arm),
        "an H100 by physics": (stock, h100, ahead),
        "an H100 by physics, drafting takes no time": (stock, replace(h100, waits=False), ahead),
    }


def prices(setting: Setting) -> list[Section]:
    """Make the section that simulates the rollouts of Fig 10 at each of several prices. One of an epoch's nine batches,
    in all epochs, stands for all nine: they hardly interact."""
    steps, problems = int(setting.task.maths_steps), int(setting.task.maths_batch)
    epochs = -(-steps // STEPS_PER_EPOCH)
    works = training_steps(setting.synthesis.make(problems, 16 * epochs, MAX_TOKENS, seed=1), epochs, problems, 16)
    weights = np.array([min(STEPS_PER_EPOCH, steps - STEPS_PER_EPOCH * epoch) for epoch in range(epochs)])
    longest = np.array([int(work.lengths.max()) for work in works])
    paper_line, paper_curve = published_reduction(setting.published["das_fig10_time"]["data"]["arms"])
    lines, drawn = [paper_line], {}
    for name, (without, with_, arm) in by_price(setting).items():
        none, drafted = simulated(Arm(), works, without), simulated(arm, works, with_)
        none_s, drafted_s = (np.array([step.rollout_s for step in each]) for each in (none, drafted))
        tokens = weights @ [step.tokens for step in drafted] / (weights @ [step.passes for step in drafted])
        saved = " / ".join(percent(value) for value in 1 - drafted_s / none_s)
        in_all = percent(1 - float((weights @ drafted_s) / (weights @ none_s)))
        ours = f"{saved}; {in_all} in all, {tokens:.2f} tokens per pass"
        drawn[name] = np.arange(1, epochs + 1), 100 * (1 - drafted_s / none_s)
        setting.progress.note(f"maths, {name}: {ours}")
        lines.append(Line(f"{name}: {1e3 * float((weights @ none_s) / (weights @ longest)):.1f} ms", replay=ours))
    drawn["DAS (paper)"] = np.arange(1, 5), 100 * paper_curve
    axes = ("epoch", "reduction of rollout time (%)", "Fig 10 by price of a pass")
    section = Section(
        "Fig 10 under other prices of a pass",
        f"{problems} problems x 16 on one engine, once per epoch. Each line gives the mean time of a pass without "
        f"drafts, and the reduction of rollout time in epochs 1 / 2 / 3 / 4 and in all {steps} steps.",
        lines,
        PRICES,
        [curves(setting.folder / "das_reduction.png", drawn, *axes)],
    )
    return [section]


def published_reduction(paper: dict[str, Any]) -> tuple[Line, np.ndarray]:
    """Return the report's Line for the paper, and the paper's reductions of rollout time, one for each epoch: [4]."""
    first = range(0, len(paper["das"]["seconds"]), STEPS_PER_EPOCH)
    das, verl = (np.add.reduceat(paper[name]["seconds"], first) for name in ("das", "verl"))
    in_all = percent(1 - das.sum() / verl.sum())
    plotted = f"{' / '.join(percent(value) for value in 1 - das / verl)}; {in_all} in all"
    # The paper's plot of 30 steps shows 40.7 %.
    return Line("the paper: 27.1 ms at least", plotted, "up to 50 % (arXiv), over 30 % (MLSys)"), 1 - das / verl
