"""DAS (arXiv 2511.13841): simulate Fig 10's maths step at other times of a pass (prices) than those of Fig 8."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.quantities import percent
from analysis.report import Line, Section
from das.budget.latency import Array
from experiments.papers.replayed import MAX_NUM_SEQS, MAX_TOKENS, STEPS_PER_EPOCH, Batch, Outcome, Setting, seconds
from experiments.simulate.arms import Arm, simulate
from experiments.simulate.gpu_times import KEYS, gpu_times
from experiments.simulate.times import Form, PassTimes, Times

PRICES = (
    "Fig 8 has one price for a live request and for a drafted token. Any cost of a pass that drafted tokens do not add "
    "to makes them cheap by comparison. The keys and values of the context are such a cost: they are read once in a "
    "pass, however many tokens are verified, and Fig 8 does not say at which context it was timed. By physics a pass "
    "of an H100 has that cost, and the host's. There das's arm plans the drafted tokens of a pass before it knows the "
    "drafts, so that some rows are placeholders, and the device waits while it drafts; the last line leaves out the "
    "wait. Nothing was fitted to the paper's times."
)


@dataclass(frozen=True)
class ContextRead:
    """A latency form that adds to the time of `form` the time to read the keys and values of all context once."""

    form: Form
    token: float  # seconds for each token of context

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.form.predict(live, tokens, context) + self.token * context


@dataclass(frozen=True)
class Price:
    """The step with other prices: the times of passes without drafts, and with those of `arm`."""

    name: str
    none: PassTimes
    drafted: PassTimes
    arm: Arm


def by_price(setting: Setting) -> Sequence[Price]:
    """Return the prices. The paper's own are the first."""
    fig8, h100, arm = setting.times, gpu_times("H100", "7B"), Arm(setting.budget)
    assert isinstance(fig8, Times)
    token = h100.model.kv_bytes / (h100.gpu.bandwidth * KEYS)
    read = replace(fig8, form=ContextRead(fig8.form, token))
    stock, ahead = replace(h100, das=False), replace(arm, ahead=True)
    return (
        Price("Fig 8", fig8, fig8, arm),
        Price("Fig 8 + keys and values read", read, read, arm),
        Price("an H100 by physics", stock, h100, ahead),
        Price("an H100 by physics, drafting takes no time", stock, replace(h100, waits=False), ahead),
    )


def prices(setting: Setting) -> Section:
    """Make the section that simulates the rollouts of Fig 10 at each of several prices."""
    batch = Batch(setting)
    paper = setting.published["das_fig10_time"]["data"]["arms"]
    longest = np.array([int(work.lengths.max()) for work in batch.works])
    paper_line, paper_curve = published_reduction(paper)
    lines = [paper_line]
    for price in by_price(setting):
        outcome = at_price(price, batch)
        pass_ms = 1e3 * float((batch.weights @ outcome.none) / (batch.weights @ longest))
        lines.append(batch.line(outcome, f"{outcome.name}: {pass_ms:.1f} ms"))
    batch.drawn["DAS (paper)"] = np.arange(1, 5), 100 * paper_curve
    return Section(
        "Fig 10 under other prices of a pass",
        f"{setting.task.maths_batch} problems x 16 on one engine, once per epoch. Each line gives the mean time of a "
        "pass without drafts, and the reduction of rollout time in epochs 1 / 2 / 3 / 4 and in all "
        f"{batch.steps} steps.",
        lines,
        PRICES,
        [batch.figure("das_reduction.png", "Fig 10 by price of a pass")],
    )


def at_price(price: Price, batch: Batch) -> Outcome:
    """Simulate rollouts with and without drafts."""
    none = simulate(Arm(), batch.works, price.none, MAX_NUM_SEQS, MAX_TOKENS).steps
    steps = simulate(price.arm, batch.works, price.drafted, MAX_NUM_SEQS, MAX_TOKENS).steps
    return Outcome(price.name, seconds(none), seconds(steps), batch.tokens_per_pass(steps))


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
    return Line("the paper: 27.1 ms at least", plotted, CLAIMED), np.array(by_epoch)


# The paper's plot of 30 steps shows 40.7 %, arXiv's abstract says "up to 50 %", that of the MLSys version "over 30 %".
CLAIMED = "up to 50 % (arXiv), over 30 % (MLSys)"
