"""Passes and rollouts of das and vLLM that one H200 took, beside those that GpuTimes computes. Prints the tables of
docs/benchmarks.md: python -m experiments.simulate.against_h200 (seconds)

The measured work is simulated as it was: Qwen3-8B's shape, forced made-up responses of 192 tokens, siblings of 8,
prompts of 256 tokens, six epochs of which the first is left out, the default budget. das planned a request's longest
draft of the last four passes, kept a pass within its largest graph of 576 rows (so one drafted token a request at 256),
and read the tokens of each pass at rest.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from das.budget.marginal import Marginal
from das.drafter import HistoryDrafter
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.engine import Engine, PlainEngine
from experiments.simulate.gpu_times import GpuTimes, gpu_times
from experiments.simulate.made_up import made_up_problems
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import PassWork
from experiments.simulate.workload import Workload, workload

SIBLINGS, EPOCHS, LENGTH, PROMPT = 8, 6, 192, 256
DRAFTED, GRAPHS = 8, 576  # most drafted tokens of a request; rows of the largest graph
READING = 9e-6  # seconds a request in a pass at rest, as das read passes then (.6 ms at 64 requests, 2.3 at 256)
# ms a pass by live requests: with 0, 4 and 8 random drafts a request, at 1,024 tokens of context, without log-probs.
# The last two are of the das that drafted before it launched.
PASSES = {1: (5.6, 6.2, 6.0), 16: (6.2, 7.3, 8.0), 64: (8.4, 14.2, 20.5), 256: (19.1, 50.2, 74.9)}
BEFORE = {256: (4, 8)}


@dataclass(frozen=True)
class Rolled:
    """What an arm's rollouts took: ms a pass, tokens a pass, and the time divided by that of `stock`."""

    ms: float
    tokens: float
    ratio: float
    drafted: float = 0.0  # tokens a pass
    first: float = 1.0  # the ratio of the first epoch


# By live requests: `stock`; das launched ahead (call 6 of 2026-11-27); das at rest (call 2 of 2026-11-26, and call 7).
STOCK = {16: 6.0, 64: 7.3, 256: 15.9}
DAS = {16: Rolled(7.9, 2.58, 0.62), 64: Rolled(13.3, 2.30, 1.03), 256: Rolled(21.4, 1.32, 1.10)}
AT_REST = {64: 7.6, 256: 17.4}


def h200(das: bool = True) -> GpuTimes:
    """Return the times of passes of an 8B on the H200, by das as it was then or by vLLM as it comes."""
    return replace(gpu_times("H200", "8B"), das=das, reading=READING)


def passes() -> list[tuple[str, float, float]]:
    """Return what a pass has, its measured ms and its computed ms."""
    found = []
    for live, measured in PASSES.items():
        for drafted, ms in zip((0, 4, 8), measured, strict=True):
            times = replace(h200(), log_probs=False, remembers=False, late=drafted not in BEFORE.get(live, ()))
            work = PassWork(live, live * drafted, 1024 * live, live, asked=live if drafted else 0)
            seconds = times.seconds(work)
            found.append((f"{live} requests, {drafted} drafted each", ms, 1e3 * seconds))
    return found


def works(live: int, epochs: int = EPOCHS) -> list[Workload]:
    """Return the responses of each epoch, each with its end token."""
    problems = made_up_problems(live // SIBLINGS, SIBLINGS * (EPOCHS + 1), LENGTH, seed=0)
    names = [problem for problem, _ in problems for _ in range(SIBLINGS)]
    return [
        workload(
            names,
            [np.append(text, -1 % 151_936) for _, texts in problems for text in texts[e * SIBLINGS :][:SIBLINGS]],
            PROMPT,
        )
        for e in range(epochs)
    ]


class Then(Marginal):
    """The budget as it was: however much drafting lost, it went on."""

    _overdrawn = False


def roll_out(engine: Engine, epochs: Sequence[Workload]) -> list[Step]:
    """Simulate rollouts, each after an epoch."""
    return [simulate_rollout(work, [engine], [range(len(work))], tick) for tick, work in enumerate(epochs, 1)]


def longest(wanted: Sequence[Collection[int]], most: int) -> list[int]:
    """Return how many drafted tokens of each request das planned then."""
    return [max(counts, default=0) for counts in wanted]


def rolled(live: int) -> tuple[float, Rolled]:
    """Simulate the rollouts of `live` requests. Returns ms a pass of `stock`, and what das took."""
    epochs = works(live)
    stock = roll_out(PlainEngine(h200(das=False), live), epochs)
    most = min(DRAFTED, GRAPHS // live - 1)
    engine = TextEngine(h200(), live, HistoryDrafter(), Then(), LENGTH + 1, max_draft_tokens=most, ahead=longest)
    das = roll_out(engine, epochs)
    count = sum(len(step.timelines[0]["live"]) for step in das[1:])
    took, of_stock = (sum(step.rollout_s for step in arm[1:]) for arm in (das, stock))
    # An engine that drafts ran a request once more before it heard of its end; `stock` knew the responses' lengths.
    took += len(das[1:]) * h200().seconds(PassWork(1, 0, PROMPT + LENGTH, 1))
    tokens = sum(step.tokens for step in das[1:]) / sum(step.passes for step in das[1:])
    drafted = sum(step.num_drafted for step in das[1:]) / count
    first = das[0].rollout_s / stock[0].rollout_s
    ms = 1e3 * of_stock / sum(len(step.timelines[0]["live"]) for step in stock[1:])
    return ms, Rolled(1e3 * took / count, tokens, took / of_stock, drafted, first)


def at_rest(live: int) -> float:
    """Return ms a pass of das in a rollout in which it drafts nothing."""
    step = roll_out(PlainEngine(h200(), live), works(live, 1))[0]
    return 1e3 * step.rollout_s / len(step.timelines[0]["live"])


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def beside(measured: float, computed: float, digits: int = 1) -> tuple[str, str, str]:
    """Return the cells of a measured and a computed number, and how far they part."""
    return f"{measured:.{digits}f}", f"{computed:.{digits}f}", f"{100 * (computed / measured - 1):+.0f} %"


def main() -> None:
    head = ("measured", "computed", "apart")
    lines = [row("ms a pass, 1,024 tokens of context", *head), row(*["---"] * 4)]
    lines += [row(name, *beside(ms, computed)) for name, ms, computed in passes()]
    rollouts = [row("rollouts", *head), row(*["---"] * 4)]
    for live, measured in DAS.items():
        stock, das = rolled(live)
        rollouts += [
            row(f"`stock`, {live} requests, ms a pass", *beside(STOCK[live], stock)),
            row(f"`das`, {live} requests, ms a pass", *beside(measured.ms, das.ms)),
            row(f"its tokens a pass ({das.drafted:.0f} drafted)", *beside(measured.tokens, das.tokens, 2)),
            row(f"**`das` / `stock`, {live} requests**", *beside(measured.ratio, das.ratio, 2)),
            row(f"the same in the first epoch, {live} requests", "", f"{das.first:.2f}", ""),
        ]
    rollouts += [
        row(f"`das` at rest, {live} requests, ms a pass", *beside(ms, at_rest(live))) for live, ms in AT_REST.items()
    ]
    print("\n".join([*lines, "", *rollouts]))


if __name__ == "__main__":
    main()
