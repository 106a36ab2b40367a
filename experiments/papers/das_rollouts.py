"""DAS (arXiv 2511.13841): rollout times of maths (Figs 10, 4, 1) and code (Figs 11-13), and what all its simulations
share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, curves, percent
from experiments.run.progress import Progress
from experiments.simulate.engine import Step, roll_out
from experiments.simulate.text_engine import Arm
from experiments.simulate.times import PassTimes, Times
from experiments.simulate.workload import Synthesis, Workload

MAX_NUM_SEQS = 256  # requests that an engine decodes at once (paper: 2,048 responses on 8 engines)
MAX_TOKENS = 16384  # most tokens of a response (paper)
STEPS_PER_EPOCH = 9  # steps of an epoch of maths: 1,209 problems / 128 per step
RANGES = ((1, 1), (1, 9), (10, 18), (19, 27), (1, 24), (25, 30), (1, 30))  # steps (first, last) of Fig 10 to compare
FIG10 = (
    "The paper saves 50 % from step 1 on. Recorded text at Fig 8's prices supports less. It supports least in the "
    "first epoch, when drafts can only come from the response itself and its siblings, and more once problems come "
    "again. The price limits it most: Fig 8 charges 28 us for every token of a pass, so at 256 live requests a drafted "
    "token costs as much as an emitted one, and only likely ones pay. Fig 8 cannot be the whole price of the paper's "
    "engine: by Fig 8 a pass of 256 requests takes 15 ms, but 443.6 s per step are 27 ms per pass even if the longest "
    "response had all 16,384 tokens. The section on other prices below tries what the rest may be. The text is the "
    "other limit. Seconds differ also because our responses are shorter than the paper's."
)
CODE = (
    "DeepCoder has 24K problems, so none comes twice in 50 steps, and both gain from the response's own text and its "
    "siblings alone. Ours gain more: with 16 live requests a pass costs its fixed price, and drafts are nearly free. "
    "Fig 8 leaves out what an engine pays for speculating at all (bookkeeping, drafting on the host), and our text is "
    "maths, not code. Which of the two explains the difference cannot be told from here."
)


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


def rollout_seconds(steps: Sequence[Step], first: int, last: int) -> float:
    """Return the sum of the rollout times of steps `first` to `last`, counted from 1."""
    return sum(step.rollout_s for step in steps[first - 1 : last])


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
    lines = []
    for first, last in ranges:
        plotted = ours = ""
        drafted, plain = (paper["arms"][names[name]]["seconds"][first - 1 : last] for name in (with_, without))
        if len(drafted) == len(plain) == last - first + 1:
            plotted = percent(1 - sum(drafted) / sum(plain))
        if last <= len(arms[with_]):
            ours = percent(1 - rollout_seconds(arms[with_], first, last) / rollout_seconds(arms[without], first, last))
        lines.append(Line(f"{with_} against {without}, steps {first}-{last}: reduction", plotted, "", ours))
    return lines


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
        mean = rollout_seconds(arms[name], 1, len(works)) / len(works)
        setting.progress.note(
            f"{title}, {name}: {mean:.1f} s per step, {per_pass(arms[name], 'tokens'):.2f} tokens/pass"
        )
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
    accepted = Line(
        "accepted per pass, das, first / last 9 steps (Fig 4: steps 0-100 / 700-800)",
        "2.5 / 4.3",
        "",
        " / ".join(f"{per_pass(part, 'num_accepted'):.2f}" for part in first_and_last),
    )
    numbers = np.arange(1, steps + 1)
    figure = curves(
        setting.folder / "das_fig10.png",
        {
            "none": (numbers, [step.rollout_s for step in arms["none"]]),
            "das": (numbers, [step.rollout_s for step in arms["das"]]),
            "veRL (paper)": (paper["arms"]["verl"]["step"], paper["arms"]["verl"]["seconds"]),
            "DAS (paper)": (paper["arms"]["das"]["step"], paper["arms"]["das"]["seconds"]),
        },
        "training step",
        "rollout time (s)",
        "Fig 10: maths",
    )
    lengths = np.concatenate([work.lengths for work in works])
    return Section(
        f"Fig 10 and Fig 4: maths, {steps} steps",
        f"{task.maths_batch} problems x 16 on one engine of 8, 9 steps per epoch, budget {setting.budget['name']}, "
        f"responses of {lengths.mean():.0f} tokens on average, {lengths.max()} at most.",
        [*lines, accepted],
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
    figure = curves(
        setting.folder / "das_fig1.png",
        drawn,
        "time / rollout time without speculation",
        "share of requests live",
        "Fig 1",
    )
    return Section(
        "Fig 1: live requests in one rollout",
        "Step 1 of the section above. Both axes are relative.",
        [Line("end of DAS / end without", f"{110 / 220:.2f}", "", f"{ends['das'] / ends['none']:.2f}")],
        figures=[figure],
    )


def code(setting: Setting) -> list[Section]:
    """Make the sections of Figs 11-13. Each of the paper's 16 engines has 2 problems x 8 responses in a step, always
    new problems."""
    return [
        code_section(
            setting, "Figs 11 and 12: code", "das_fig12", "about 25 %", 2, 16384, ("none", "das", "unlimited")
        ),
        code_section(setting, "Fig 13 left: 8k cap", "das_fig13_8k", "over 30 %", 2, 8192, ("none", "das")),
        code_section(setting, "Fig 13 right: batch 16", "das_fig13_batch16", "similar", 1, 16384, ("none", "das")),
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
