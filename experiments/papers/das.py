"""DAS (arXiv 2511.13841): its figures, replayed on recorded chains of thought with the paper's own latencies (Fig 8).

One engine is simulated, with its share of the problems. That is enough because engines are alike and the siblings of a
problem stay together. das_rollouts.py has the rollout times; here are Figs 8 and 6, and Fig 10 at other times of a pass
(prices) than those of Fig 8.
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
from experiments.papers.das_rollouts import (
    MAX_TOKENS,
    STEPS_PER_EPOCH,
    Setting,
    code,
    maths,
    per_pass,
    simulated,
    training_steps,
)
from experiments.run.processes import in_processes
from experiments.run.progress import Progress
from experiments.settings.checked import Settings
from experiments.simulate.gpu_times import KEYS, gpu_times
from experiments.simulate.rollouts import chains_of_thought, grouped
from experiments.simulate.text_engine import Arm
from experiments.simulate.times import Form, Passes, PassTimes, Table, Times, fit_affine, relative_error
from experiments.simulate.workload import Synthesis

PREFACE = (
    "Text: recorded chains of thought, because no recording of the paper's own runs exists. Where a trace has too few "
    "responses of a problem, further ones are synthetic (experiments/simulate/workload.py). Latencies: points of the "
    "paper's Fig 8, digitised, unless a section says otherwise. One engine of the paper's 8 or 16 is simulated, with "
    "its share of the problems. Reduction = 1 - time with speculation / time without. The paper's figures have no unit "
    "of time; seconds are assumed."
)
PRICES = (
    "Fig 8 has one price for a live request and for a drafted token. Any cost of a pass that drafted tokens do not add "
    "to makes them cheap by comparison. The keys and values of the context are such a cost: they are read once in a "
    "pass, however many tokens are verified, and Fig 8 does not say at which context it was timed. By physics a pass "
    "of an H100 has that cost, and the host's. There das's arm plans the drafted tokens of a pass before it knows the "
    "drafts, so that some rows are placeholders, and the device waits while it drafts; the last line leaves out the "
    "wait. Nothing was fitted to the paper's times."
)
FIXED = {"name": "fixed", "tokens": 16}  # budget of Fig 6


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
    section = Section(
        "Fig 10 under other prices of a pass",
        f"{problems} problems x 16 on one engine, once per epoch. Each line gives the mean time of a pass without "
        f"drafts, and the reduction of rollout time in epochs 1 / 2 / 3 / 4 and in all {steps} steps.",
        lines,
        PRICES,
        [
            curves(
                setting.folder / "das_reduction.png",
                drawn,
                "epoch",
                "reduction of rollout time (%)",
                "Fig 10 by price of a pass",
            )
        ],
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
