"""DAS (arXiv 2511.13841): simulate Fig 10's maths step at other times of a pass (prices) than those of Fig 8, and with
a model that drafts, alone or beside the history of past responses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.quantities import percent
from analysis.report import Line, Section
from das.draft_round import BLOCKS_A_TREE
from das.drafter import HistoryDrafter
from das.models.hybrid import NoHistory
from experiments.papers import das_needed
from experiments.papers.replayed import (
    FIXED,
    MAX_NUM_SEQS,
    MAX_TOKENS,
    STEPS_PER_EPOCH,
    Batch,
    Outcome,
    Setting,
    seconds,
    simulated,
)
from experiments.simulate.arms import Arm, Copy, Simulated
from experiments.simulate.hardware import (
    BANDWIDTH_SHARE,
    BRANCHING,
    GPUS,
    VERIFY_TOKEN,
    W4_PASS,
    W4_REQUEST,
    W4_WEIGHTS,
    W8_WEIGHTS,
    derived,
)
from experiments.simulate.model_profiles import read_profiles
from experiments.simulate.scale import CheaperPass, ContextRead, CostScaled
from experiments.simulate.times import Form, Times

PRICES = (
    "Fig 8 has one price for a live request and for a drafted token. Any cost of a pass that drafted tokens do not add "
    "to makes them cheap by comparison. Keys and values are read once per pass, however many tokens are verified (here "
    "at the share of bandwidth and the bytes that EfficientRollout fitted for Qwen2.5-7B on an A100). The host's time "
    "is paid once per pass too. `What Fig 10 takes beyond` is host time per pass, fitted to the paper's plain arm "
    "alone, as if its longest response had 16,384 tokens; nothing was fitted to its DAS arm. With it the replay saves "
    "about what the paper plots over all steps, but less in the first epoch, where no problem has come before, and "
    "more in the last two. The roofline is the other extreme: verifying costs nothing until a pass is compute-bound. "
    "A branch of a draft reads its request's keys and values once more, and a pass with branches takes an "
    f"assumed {1e3 * BRANCHING:.1f} ms longer. `Drafts for nothing` is the most that this text supports with 16 "
    "drafted tokens per pass, so 55 % would need verification that is all but free, or text that repeats itself more."
)
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
class Variant:
    """The step with other prices, or with other drafts. Without further fields das drafts, with the configured budget.

    ratio: the budget's first guess, time of a small pass / time of a token; None: the configured one.
    """

    name: str
    form: Form  # time of a pass of the policy
    ratio: float | None = None
    copy: Copy | None = None
    history: bool = True
    trees: bool = False  # drafts may branch
    fitted_host: bool = False  # add host time to each pass, so that the arm without drafts takes as long as the paper's
    free_drafts: bool = False  # drafts cost nothing, and have 16 tokens each instead of a budget's choice


def by_price(setting: Setting) -> Sequence[Variant]:
    """Return the variants of the first section. The paper's own prices are the first."""
    fig8 = setting.times.form
    bytes_per_token = setting.published["er_constants"]["data"]["Qwen2.5-7B"]["kappa_eff"]  # of keys and values
    reading = ContextRead(fig8, bytes_per_token / (GPUS["H100"].bandwidth * BANDWIDTH_SHARE))
    roofline = derived("H100", "7B")
    return (
        Variant("Fig 8", fig8),
        Variant("Fig 8, drafts that branch", fig8, trees=True),
        Variant("Fig 8 + keys and values read", reading),
        Variant("the same + what Fig 10 takes beyond", reading, fitted_host=True),
        Variant("roofline of an H100 (derived)", roofline),
        Variant("the roofline, drafts that branch", roofline, trees=True),
        Variant("the roofline + what Fig 10 takes beyond", roofline, fitted_host=True),
        Variant("Fig 8, drafts for nothing", CostScaled(fig8, 0.0), free_drafts=True),
    )


def by_model(setting: Setting) -> Sequence[Variant]:
    """Return the variants of the second section: with derived times of an H100, then with the paper's of Fig 8."""
    fig8, roofline = setting.times.form, derived("H100", "7B")
    dear = CostScaled(roofline, 1.0, VERIFY_TOKEN)
    # By the data sheet, an H100 reads the weights of a 7B in the time in which it computes 300 tokens.
    h100, of_fig8 = 300.0, 250.0
    w4, w8 = replace(roofline, weights=W4_WEIGHTS), replace(roofline, weights=W8_WEIGHTS)
    fitted = replace(roofline, weights=W4_PASS, request=W4_REQUEST)
    rates = {name: profile.rates for name, profile in read_profiles().items()}
    copy = Copy(rates["w4"], w4)
    das_self = Variant("H100, das_self, 4 bits", roofline, h100, copy)
    alone = replace(das_self, history=False, copy=replace(copy, passes=7))
    return (
        Variant("H100, das", roofline, h100),
        replace(alone, name="H100, self_draft alone, 4 bits, 7 passes"),
        das_self,
        replace(das_self, name="H100, das_self, 4 bits, 8 passes", copy=replace(copy, passes=8)),
        replace(das_self, name="H100, das_self, 4 bits, at most 32 live", copy=replace(copy, most_live=32)),
        replace(das_self, name="H100, das_self, 4 bits, published acceptance", copy=Copy(rates["w4_published"], w4)),
        replace(das_self, name="H100, das_self, 4 bits, fitted price", copy=replace(copy, price=fitted)),
        replace(das_self, name="H100, das_self, 8 bits", copy=Copy(rates["w8"], w8)),
        Variant("H100, dear tokens, das", dear, h100),
        Variant("Fig 8, das", fig8, of_fig8),
        Variant("Fig 8, das_self, 4 bits", fig8, of_fig8, Copy(rates["w4"], CheaperPass(fig8, W4_WEIGHTS))),
    )


def prices(setting: Setting) -> Section:
    """Make the section that simulates the rollouts of Fig 10 at each of several prices."""
    batch = Batch(setting)
    paper = setting.published["das_fig10_time"]["data"]["arms"]
    longest = np.array([int(work.lengths.max()) for work in batch.works])
    paper_line, paper_curve = published_reduction(paper)
    lines, priced = [paper_line], []
    for variant in by_price(setting):
        outcome, times, rollouts = simulate(setting, variant, batch)
        if not (variant.trees or variant.free_drafts):
            priced.append((outcome.name, times, rollouts.steps))
        pass_ms = 1e3 * float((batch.weights @ outcome.none) / (batch.weights @ longest))
        lines.append(batch.line(outcome, f"{outcome.name}: {pass_ms:.1f} ms"))
    batch.drawn["DAS (paper)"] = np.arange(1, 5), 100 * paper_curve
    return Section(
        "Fig 10 under other prices of a pass",
        f"{setting.task.maths_batch} problems x 16 on one engine, once per epoch. Each line gives the mean time of a "
        "pass without drafts, and the reduction of rollout time in epochs 1 / 2 / 3 / 4 and in all "
        f"{batch.steps} steps. Drafts for nothing: fixed drafts of 16.",
        lines,
        PRICES,
        [batch.figure("das_reduction.png", "Fig 10 by price of a pass")],
        das_needed.sensitivity(priced, float(np.mean(np.concatenate([work.lengths for work in batch.works]))) / 2),
    )


def hybrids(setting: Setting) -> Section:
    """Make the section that simulates the rollouts of Fig 10 with models as drafters."""
    batch = Batch(setting)
    lines = []
    for variant in by_model(setting):
        outcome, _, rollouts = simulate(setting, variant, batch)
        asked = rollouts.draft_passes / sum(len(step.timelines[0]["live"]) for step in rollouts.steps)
        lines.append(batch.line(outcome, more="" if variant.copy is None else f", {asked:.2f} draft passes a pass"))
    return Section(
        "Fig 10 with models as drafters",
        f"{setting.task.maths_batch} problems x 16 on one engine, once per epoch. Reduction of rollout time in epochs "
        f"1 / 2 / 3 / 4 and in all {batch.steps} steps, against no speculation at the same prices. The paper: more "
        "than 50 %.",
        lines,
        HYBRIDS,
        [batch.figure("das_hybrids.png", "Fig 10 with models as drafters")],
    )


def simulate(setting: Setting, variant: Variant, batch: Batch) -> tuple[Outcome, Times, Simulated]:
    """Simulate rollouts with and without drafts. Returns what came out, the times, and the rollouts with drafts."""
    works, weights, name = batch.works, batch.weights, variant.name
    drafting = 0.0 if variant.free_drafts or not variant.history else setting.times.draft_request
    times = Times(variant.form, draft_request=drafting, branching=BRANCHING)
    none = seconds(simulated(Arm(), works, times).steps)
    if variant.fitted_host:  # supposes that the longest response in the paper's rollouts had 16,384 tokens
        paper_s = float(np.mean(setting.published["das_fig10_time"]["data"]["arms"]["verl"]["seconds"]))
        longest = np.array([int(work.lengths.max()) for work in works])
        beyond = paper_s / MAX_TOKENS - float((weights @ none) / (weights @ longest))
        times = replace(times, host=max(0.0, beyond))
        none = none + longest * times.host
        name += f", {1e3 * beyond:.1f} ms per pass"
    budget: dict[str, Any] = dict(FIXED if variant.free_drafts else setting.budget)
    if variant.ratio is not None and "ratio" in budget:
        budget["ratio"] = variant.ratio
    blocks = BLOCKS_A_TREE * MAX_NUM_SEQS if variant.trees else 0
    arm = Arm(budget, HistoryDrafter if variant.history else NoHistory, variant.copy, blocks)
    rollouts = simulated(arm, works, times)
    return Outcome(name, none, seconds(rollouts.steps), batch.tokens_per_pass(rollouts.steps)), times, rollouts


def published_reduction(paper: dict[str, Any]) -> tuple[Line, np.ndarray]:
    """Return the report's Line for the paper, and the paper's reductions of rollout time, one for each epoch: [4]."""
    nine = STEPS_PER_EPOCH
    totals = {
        name: [sum(paper[name]["seconds"][nine * epoch : nine * epoch + nine]) for epoch in range(4)]
        for name in ("das", "verl")
    }
    by_epoch = [1 - a / b for a, b in zip(totals["das"], totals["verl"], strict=True)]
    in_all = percent(1 - sum(totals["das"]) / sum(totals["verl"]))
    plotted = f"{' / '.join(percent(value) for value in by_epoch)}; {in_all} in all"
    return Line("the paper: 27.1 ms at least", plotted, "more than 50 %"), np.array(by_epoch)
