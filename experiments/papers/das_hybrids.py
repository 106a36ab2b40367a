"""DAS (arXiv 2511.13841): simulate Fig 10's maths step with a model that drafts, alone or beside the history of past
responses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.report import Section
from das.budget import make_budget
from das.drafter import HistoryDrafter
from das.models.hybrid import Hybrid, NoHistory
from das.replay.cluster import Step, simulate_rollout
from das.replay.engine import Engine, PlainEngine
from das.replay.text_engine import TextEngine
from das.replay.times import Form, Times
from das.replay.workload import Workload
from experiments.papers.replayed import MAX_NUM_SEQS, MAX_TOKENS, Batch, Outcome, Setting, seconds
from experiments.recorded.model_profiles import read_profiles
from experiments.replay.hardware import (
    VERIFY_TOKEN,
    W4_PASS,
    W4_REQUEST,
    W4_WEIGHTS,
    W8_WEIGHTS,
    derived,
)
from experiments.replay.model_on_text import CopyOnText
from experiments.replay.scale import CheaperPass, CostScaled

HYBRIDS = (
    "The model is not run: it is right at each place with its acceptance, alike at easy and hard places. That flatters "
    "hybrids, because the model is asked where the history is silent and text is hard. Measured acceptance is our "
    "small policy's. History, chains, budget and learned prices are those of the engine. A draft pass of a 4-bit copy "
    f"reads {W4_WEIGHTS} of the policy's weights and all of its keys and values, and costs as much for each request as "
    "a pass; `fitted` is the published fit of such passes on an A100. On the roofline a verified token is free until a "
    f"pass is bound by computing; `dear tokens` adds {1e6 * VERIFY_TOKEN:.0f} us for each. Half of das's rollout time "
    "is spent while more than 192 requests are live. There each request's own time, 54 us, is most of a pass, and a "
    "pass of a copy pays it again."
)


@dataclass(frozen=True)
class Arm:
    """A simulated drafter with its costs: a model if `acceptance` is given, and the history if `history` is True."""

    name: str
    form: Form  # time of a pass of the policy
    ratio: float  # the budget's first guess: time of a small pass / time of a token
    acceptance: str | None = None  # a name in experiments/recorded/model_profiles.json; None: no model drafts
    price: Form | None = None  # time of a draft pass
    passes: int = 4
    history: bool = True
    most_live: int = 2**31  # the model drafts only while at most so many requests are live


def hybrids(setting: Setting) -> Section:
    """Make the section that simulates the rollouts of Fig 10 with models as drafters."""
    batch = Batch(setting)
    lines, plain = [], dict[int, np.ndarray]()
    for arm in arms(setting.times.form):
        if id(arm.form) not in plain:
            plain[id(arm.form)] = seconds(simulate(PlainEngine(Times(arm.form), MAX_NUM_SEQS), batch.works))
        done, draft_passes, passes = simulate_arm(arm, setting, batch.works)
        outcome = Outcome(arm.name, plain[id(arm.form)], seconds(done), batch.tokens_per_pass(done))
        asked = "" if arm.acceptance is None else f", {draft_passes / passes:.2f} draft passes a pass"
        lines.append(batch.line(outcome, more=asked))
    return Section(
        "Fig 10 with models as drafters",
        f"{setting.task.maths_batch} problems x 16 on one engine, once per epoch. Reduction of rollout time in epochs "
        f"1 / 2 / 3 / 4 and in all {batch.steps} steps, against no speculation at the same prices. The paper: more "
        "than 50 %.",
        lines,
        HYBRIDS,
        [batch.figure("das_hybrids.png", "Fig 10 with models as drafters")],
    )


def arms(fig8: Form) -> Sequence[Arm]:
    """Return the arms: first with derived times of an H100, then with the times of the paper's Fig 8 (`fig8`)."""
    roofline = derived("H100", "7B")
    dear = CostScaled(roofline, 1.0, VERIFY_TOKEN)
    # By the data sheet, an H100 reads the weights of a 7B in the time in which it computes 300 tokens.
    h100, by_fig8 = 300.0, 250.0
    w4, w8 = replace(roofline, weights=W4_WEIGHTS), replace(roofline, weights=W8_WEIGHTS)
    fitted = replace(roofline, weights=W4_PASS, request=W4_REQUEST)
    copy = Arm("H100, das_self, 4 bits", roofline, h100, "w4", w4)
    return (
        Arm("H100, das", roofline, h100),
        replace(copy, name="H100, self_draft alone, 4 bits, 7 passes", history=False, passes=7),
        copy,
        replace(copy, name="H100, das_self, 4 bits, 8 passes", passes=8),
        replace(copy, name="H100, das_self, 4 bits, at most 32 live", most_live=32),
        replace(copy, name="H100, das_self, 4 bits, published acceptance", acceptance="w4_published"),
        replace(copy, name="H100, das_self, 4 bits, fitted price", price=fitted),
        replace(copy, name="H100, das_self, 8 bits", acceptance="w8", price=w8),
        Arm("H100, dear tokens, das", dear, h100),
        Arm("Fig 8, das", fig8, by_fig8),
        Arm("Fig 8, das_self, 4 bits", fig8, by_fig8, "w4", CheaperPass(fig8, W4_WEIGHTS)),
    )


def simulate_arm(arm: Arm, setting: Setting, works: Sequence[Workload]) -> tuple[list[Step], int, int]:
    """Simulate an arm. Returns its steps, its number of draft passes, and its number of passes of the policy."""
    budget_settings: dict[str, Any] = dict(setting.budget)
    if "ratio" in budget_settings:
        budget_settings["ratio"] = arm.ratio
    budget, hybrid = make_budget(budget_settings), None
    if arm.acceptance is not None:
        assert arm.price is not None
        rates = read_profiles()[arm.acceptance].rates
        copy = CopyOnText(rates, arm.price, arm.most_live)
        hybrid = Hybrid(copy, arm.passes, budget.worth)
    times = Times(arm.form, draft_request=setting.times.draft_request if arm.history else 0.0)
    drafter = HistoryDrafter() if arm.history else NoHistory()
    engine = TextEngine(times, MAX_NUM_SEQS, drafter, budget, MAX_TOKENS, hybrid=hybrid)
    draft_passes, steps = 0, []
    for i, work in enumerate(works):
        steps += simulate(engine, [work], i + 1)
        draft_passes += engine.draft_passes
    return steps, draft_passes, sum(len(step.timelines[0]["live"]) for step in steps)


def simulate(engine: Engine, works: Sequence[Workload], first_tick: int = 1) -> list[Step]:
    """Simulate these steps on one engine, and return them with their times. The history's clock (its tick) begins at
    `first_tick` and moves by 1 after each step."""
    return [simulate_rollout(work, [engine], [range(len(work))], first_tick + i) for i, work in enumerate(works)]
