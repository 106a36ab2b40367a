"""DAS (arXiv 2511.13841): simulate Fig 10's maths step at other times of a pass (prices) than those of Fig 8."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.quantities import percent
from analysis.report import Line, Section
from experiments.papers.replayed import (
    FIXED,
    MAX_TOKENS,
    STEPS_PER_EPOCH,
    Batch,
    Outcome,
    Setting,
    seconds,
    simulated,
)
from experiments.simulate.arms import Arm
from experiments.simulate.hardware import (
    BANDWIDTH_SHARE,
    GPUS,
    derived,
)
from experiments.simulate.scale import ContextRead, CostScaled
from experiments.simulate.times import Form, Times

PRICES = (
    "Fig 8 has one price for a live request and for a drafted token. Any cost of a pass that drafted tokens do not add "
    "to makes them cheap by comparison. Keys and values are read once per pass, however many tokens are verified (here "
    "at the share of bandwidth and the bytes that EfficientRollout fitted for Qwen2.5-7B on an A100). The host's time "
    "is paid once per pass too. `What Fig 10 takes beyond` is host time per pass, fitted to the paper's plain arm "
    "alone, as if its longest response had 16,384 tokens; nothing was fitted to its DAS arm. With it the replay saves "
    "about what the paper plots over all steps, but less in the first epoch, where no problem has come before, and "
    "more in the last two. The roofline is the other extreme: verifying costs nothing until a pass is compute-bound. "
    "`Drafts for nothing` is the most that this text supports with 16 drafted tokens per pass, so 55 % would need "
    "verification that is all but free, or text that repeats itself more."
)


@dataclass(frozen=True)
class Variant:
    """The step with other prices. Without further fields das drafts, with the configured budget."""

    name: str
    form: Form  # time of a pass of the policy
    fitted_host: bool = False  # add host time to each pass, so that the arm without drafts takes as long as the paper's
    free_drafts: bool = False  # drafts cost nothing, and have 16 tokens each instead of a budget's choice


def by_price(setting: Setting) -> Sequence[Variant]:
    """Return the variants. The paper's own prices are the first."""
    fig8 = setting.times.form
    bytes_per_token = setting.published["er_constants"]["data"]["Qwen2.5-7B"]["kappa_eff"]  # of keys and values
    reading = ContextRead(fig8, bytes_per_token / (GPUS["H100"].bandwidth * BANDWIDTH_SHARE))
    roofline = derived("H100", "7B")
    return (
        Variant("Fig 8", fig8),
        Variant("Fig 8 + keys and values read", reading),
        Variant("the same + what Fig 10 takes beyond", reading, fitted_host=True),
        Variant("roofline of an H100 (derived)", roofline),
        Variant("the roofline + what Fig 10 takes beyond", roofline, fitted_host=True),
        Variant("Fig 8, drafts for nothing", CostScaled(fig8, 0.0), free_drafts=True),
    )


def prices(setting: Setting) -> Section:
    """Make the section that simulates the rollouts of Fig 10 at each of several prices."""
    batch = Batch(setting)
    paper = setting.published["das_fig10_time"]["data"]["arms"]
    longest = np.array([int(work.lengths.max()) for work in batch.works])
    paper_line, paper_curve = published_reduction(paper)
    lines = [paper_line]
    for variant in by_price(setting):
        outcome = simulate(setting, variant, batch)
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
    )


def simulate(setting: Setting, variant: Variant, batch: Batch) -> Outcome:
    """Simulate rollouts with and without drafts."""
    works, weights, name = batch.works, batch.weights, variant.name
    times = Times(variant.form, draft_request=0.0 if variant.free_drafts else setting.times.draft_request)
    none = seconds(simulated(Arm(), works, times).steps)
    if variant.fitted_host:  # supposes that the longest response in the paper's rollouts had 16,384 tokens
        paper_s = float(np.mean(setting.published["das_fig10_time"]["data"]["arms"]["verl"]["seconds"]))
        longest = np.array([int(work.lengths.max()) for work in works])
        beyond = paper_s / MAX_TOKENS - float((weights @ none) / (weights @ longest))
        times = replace(times, host=max(0.0, beyond))
        none = none + longest * times.host
        name += f", {1e3 * beyond:.1f} ms per pass"
    budget: dict[str, Any] = dict(FIXED if variant.free_drafts else setting.budget)
    steps = simulated(Arm(budget), works, times).steps
    return Outcome(name, none, seconds(steps), batch.tokens_per_pass(steps))


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
