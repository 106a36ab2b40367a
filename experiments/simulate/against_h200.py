"""Passes and rollouts of das and vLLM that one H200 took, beside those that GpuTimes computes. Prints the tables of
docs/benchmarks.md: python -m experiments.simulate.against_h200 (seconds)

With `designs`, it prints what das would take by when a pass learns its drafts (DESIGNS), on made-up text, on recordings
(rows of experiments.simulate.rollouts) and with long contexts: `... against_h200 designs RECORDING.jsonl.gz` (minutes)

The measured work is simulated as it was: Qwen3-8B's shape, forced made-up responses of 192 tokens, siblings of 8,
prompts of 256 tokens, six epochs of which the first is left out, the default budget. das planned a request's longest
draft of the last four passes, kept a pass within its largest graph of 576 rows (so one drafted token a request at 256),
and read the tokens of each pass at rest.
"""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from das.budget import TargetPass
from das.budget.latency import ON_GPU, Array
from das.budget.marginal import FIRST_PLAIN, Marginal
from das.draft_round import RowsAhead
from das.drafter import HistoryDrafter
from experiments.simulate.engine import PlainEngine, Step, roll_out
from experiments.simulate.gpu_times import GpuTimes, gpu_times
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.text_engine import GRAPHS, TextEngine
from experiments.simulate.times import PassWork
from experiments.simulate.workload import Workload, made_up_problems, workload

SIBLINGS, EPOCHS, LENGTH, PROMPT = 8, 6, 192, 256
LONG = 2_048  # tokens of long prompts
DRAFTED, LARGEST = 8, 576  # most drafted tokens of a request; rows of the largest graph
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
    return replace(gpu_times("H200", "8B"), das=das, thread=False, reading=READING)


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


def longest(wanted: Sequence[Collection[int]], most: int) -> list[int]:
    """Return how many drafted tokens of each request das planned then."""
    return [max(counts, default=0) for counts in wanted]


def rolled(live: int) -> tuple[float, Rolled]:
    """Simulate the rollouts of `live` requests. Returns ms a pass of `stock`, and what das took."""
    epochs = works(live)
    stock = roll_out(PlainEngine(h200(das=False), live), epochs)
    most = min(DRAFTED, LARGEST // live - 1)
    engine = TextEngine(h200(), live, HistoryDrafter(), Then(), LENGTH + 1, max_draft_tokens=most, ahead=longest)
    # An engine that drafts ran a request once more before it heard of its end; `stock` knew the responses' lengths.
    das = took(roll_out(engine, epochs), stock, h200().seconds(PassWork(1, 0, PROMPT + LENGTH, 1)))
    return 1e3 * sum(step.rollout_s for step in stock[1:]) / batches(stock[1:]), das


def batches(steps: Sequence[Step]) -> int:
    """Return the number of passes of the whole batch."""
    return sum(len(step.timelines[0]["live"]) for step in steps)


def took(steps: Sequence[Step], stock: Sequence[Step], more: float = 0.0) -> Rolled:
    """Return what rollouts of an arm took. stock: those of `stock`. more: seconds that each rollout took besides."""
    later, count = steps[1:], batches(steps[1:])
    seconds, of_stock = sum(step.rollout_s + more for step in later), sum(step.rollout_s for step in stock[1:])
    tokens = sum(step.tokens for step in later) / sum(step.passes for step in later)
    drafted = sum(step.num_drafted for step in later) / count
    return Rolled(1e3 * seconds / count, tokens, seconds / of_stock, drafted, steps[0].rollout_s / stock[0].rollout_s)


# ---- designs: when a pass learns how many tokens it verifies for each request, and which ----


class Known(Marginal):
    """The budget with the device's own times in place of learned ones. rests: whether it may rest, as it ships."""

    def __init__(self, times: GpuTimes, rests: bool):
        super().__init__()
        self._times, self._context, self._emits, self._may_rest = times, 0.0, 1.0, rests
        self.prices = self  # type: ignore[assignment]
        self._plain = FIRST_PLAIN

    error = 0.0

    @property
    def _overdrawn(self) -> bool:
        return self._may_rest and super()._overdrawn

    def observe_pass(self, done: TargetPass) -> None:
        self._settle(done)
        self._context = done.context / done.live
        self._emits += 0.1 * ((done.live + done.num_accepted) / done.live - self._emits)

    def predict(self, live: int, num_drafted: int = 0, context: int = 0) -> float:
        return float(self.table(live, num_drafted)[-1])

    def table(self, live: int, most: int) -> Array:
        times, rows = self._times, live + np.arange(most + 1, dtype=np.float64)
        lives = np.full(most + 1, live, np.float64)
        device = times.device(lives, rows, lives * self._context, remembers=times.remembers)
        seconds = np.maximum(device, times.on_host(lives, lives * self._emits)) + times.drafting(live)
        seconds[0] = times.plain(live, int(live * self._context), 1)[0]
        return np.maximum.accumulate(seconds)

    def cheapest(self, live: int) -> float:
        seconds = self.table(live, 8 * live)
        return float(min((seconds[1:] - seconds[0]) / np.arange(1, len(seconds))) * live / seconds[0])

    def most(self, live: int) -> int:
        return LARGEST * live


def planned_rows(wanted: Sequence[Collection[int]], most: int) -> list[int]:
    """Return how many drafted tokens of each request das planned before lengths came late: as many as the budget chose
    in the last rounds on average, rounded up, and fewer of the longest drafts where all would be more than `most`."""
    planned = [-(-sum(counts) // max(1, len(counts))) for counts in wanted]
    over = sum(planned) - most
    while over > 0:
        longest = max(planned)
        for i, count in enumerate(planned):
            if count == longest and over > 0:
                planned[i], over = count - 1, over - 1
    return planned


@dataclass(frozen=True)
class Design:
    """How das drafts. rows: of the largest graph. shared: whether the requests of a pass share its rows; False: each
    may have as many as the others. late: whether only the rows of a pass are decided before its drafts are known, and
    not those of each request. thread: whether a thread in C drafts. knows: whether prices of rows are known, so that
    the budget neither learns nor, unless `rests`, rests."""

    rows: int = 768
    shared: bool = True
    late: bool = False
    thread: bool = False
    knows: bool = True
    rests: bool = False

    def engine(self, times: GpuTimes, seats: int, longest: int) -> TextEngine:
        times = replace(times, thread=self.thread)
        most = DRAFTED if self.shared else min(DRAFTED, self.rows // seats - 1)
        ahead = RowsAhead(GRAPHS) if self.late else planned_rows
        budget = Known(times, self.rests) if self.knows else Marginal(ratio=ON_GPU)
        return TextEngine(times, seats, HistoryDrafter(), budget, longest, most, self.rows, ahead)


DESIGNS = {
    "each its own rows": Design(576, shared=False),
    "rows shared": Design(),
    "a thread drafts": Design(thread=True),
    "prices learned": Design(thread=True, knows=False),
    "lengths late": Design(late=True),
    "late, a thread drafts": Design(late=True, thread=True),
    "late, thread, rests": Design(late=True, thread=True, rests=True),
    "late, thread, rests, learned": Design(late=True, thread=True, knows=False),
}


def compared(name: str, epochs: Sequence[Workload], seats: int) -> str:
    """Return a row of the designs' table: time divided by that of `stock`, in the first, the second and the later
    epochs."""
    stock = roll_out(PlainEngine(h200(das=False), seats), epochs)
    ms = 1e3 * sum(step.rollout_s for step in stock) / batches(stock)
    cells, longest = [], max(int(work.lengths.max()) for work in epochs)
    for design in DESIGNS.values():
        steps = roll_out(design.engine(replace(h200(), reading=0.0), seats, longest), epochs)
        das, second = took(steps, stock), steps[1].rollout_s / stock[1].rollout_s
        cells.append(f"**{das.ratio:.2f}** ({das.first:.2f}, {second:.2f}; {das.tokens:.2f} of {das.drafted:.0f})")
    return row(name, f"{ms:.1f}", *cells)


def designs(recordings: Sequence[Path]) -> None:
    """Print the designs' table, row by row."""
    print(row("requests", "`stock`, ms a pass", *DESIGNS), row(*["---"] * (2 + len(DESIGNS))), sep="\n")
    for live in DAS:
        print(compared(f"{live}, made-up text", works(live), live), flush=True)
    long = [workload(work.problems, [work.response(i) for i in range(len(work))], LONG) for work in works(256, 4)]
    print(compared(f"256, made-up text, prompts of {LONG:,} tokens", long, 256), flush=True)
    for path in recordings:
        epochs = read_rollouts(path, SIBLINGS, 150)[:3]
        kept = list(dict.fromkeys(epochs[-1].problems))[:32]
        epochs = [work.part([i for i, name in enumerate(work.problems) if name in kept]) for work in epochs]
        print(compared(f"{len(epochs[0])} on 64 seats, {path.name.split('.')[0]}", epochs, 64), flush=True)


def at_rest(live: int) -> float:
    """Return ms a pass of das in a rollout in which it drafts nothing."""
    step = roll_out(PlainEngine(h200(), live), works(live, 1))[0]
    return 1e3 * step.rollout_s / batches([step])


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def beside(what: str, measured: float, computed: float, digits: int = 1) -> str:
    """Return the row of a measured and a computed number, and how far they part."""
    numbers = (f"{value:.{digits}f}" for value in (measured, computed))
    return row(what, *numbers, f"{100 * (computed / measured - 1):+.0f} %")


def main() -> None:
    if sys.argv[1:2] == ["designs"]:
        designs([Path(argument) for argument in sys.argv[2:]])
        return
    head, rule = ("measured", "computed", "apart"), row(*["---"] * 4)
    lines = [row("ms a pass, 1,024 tokens of context", *head), rule, *(beside(*each) for each in passes())]
    lines += ["", row("rollouts", *head), rule]
    for live, measured in DAS.items():
        stock, das = rolled(live)
        lines += [
            beside(f"`stock`, {live} requests, ms a pass", STOCK[live], stock),
            beside(f"`das`, {live} requests, ms a pass", measured.ms, das.ms),
            beside(f"its tokens a pass ({das.drafted:.0f} drafted)", measured.tokens, das.tokens, 2),
            beside(f"**`das` / `stock`, {live} requests**", measured.ratio, das.ratio, 2),
            row(f"the same in the first epoch, {live} requests", "", f"{das.first:.2f}", ""),
        ]
    lines += [beside(f"`das` at rest, {live} requests, ms a pass", ms, at_rest(live)) for live, ms in AT_REST.items()]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
