"""Rollouts at made-up prices: the replay's engine with recorded drafts and a clock that follows a curve."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from das.budget import BudgetPolicy
from das.budget.latency_forms import Array
from das.budget.prices import PassPrices
from das.drafter import Drafts, HistoryDrafter
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import workload
from experiments.bench.prices.curves import Curve
from experiments.recorded.drafter_replay import PROMPT, Problems

TOKENS = 32  # the longest draft recorded


@dataclass(frozen=True)
class Recorded:
    """A response, and what the drafter proposed at each of its positions [T, TOKENS]."""

    tokens: np.ndarray
    drafts: np.ndarray
    probs: np.ndarray
    counts: np.ndarray  # [T]

    def part(self, start: int, length: int) -> "Recorded":
        """So many tokens from `start` on."""
        chosen = slice(start, start + length)
        return Recorded(self.tokens[chosen], self.drafts[chosen], self.probs[chosen], self.counts[chosen])


def record(problems: Problems, earlier: int) -> list[Recorded]:
    """What the history drafter proposes for each problem's responses after the first `earlier` ones, in lock step."""
    drafter = HistoryDrafter()
    for problem, texts in problems:
        for i, text in enumerate(texts[:earlier]):
            drafter.begin(f"{problem} {i}", problem, PROMPT)
            drafter.observe(f"{problem} {i}", text)
            drafter.end(f"{problem} {i}")
    drafter.end_step(1)
    recorded = []
    for problem, texts in problems:
        live = [(f"{problem} {i}", text) for i, text in enumerate(texts[earlier:])]
        length = min(len(text) for _, text in live)
        names = [name for name, _ in live]
        for name in names:
            drafter.begin(name, problem, PROMPT)
        proposals = []
        for at in range(length):
            proposals.append(drafter.propose_batch(names, [TOKENS] * len(names)))
            drafter.observe_batch(names, [text[at : at + 1] for _, text in live])
        for row, (name, text) in enumerate(live):
            arrays = (np.stack([getattr(p, key)[row] for p in proposals]) for key in ("tokens", "probs", "counts"))
            recorded.append(Recorded(text[:length], *arrays))
            drafter.end(name, keep=False)
    return recorded


class RecordedDrafter(HistoryDrafter):
    """Proposes what was recorded. Requests are named by their number."""

    def __init__(self, recorded: Sequence[Recorded]) -> None:
        self._recorded = recorded
        self._at: dict[str, int] = {}

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray) -> None:
        self._at[request] = 0

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        for request, new in zip(requests, tokens, strict=True):
            self._at[request] += len(new)

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        recorded_of = [self._recorded[int(request)] for request in requests]
        # A response that has just ended is asked for once more.
        at = [self._at[request] for request in requests]
        places = [(each, min(i, len(each.counts) - 1)) for each, i in zip(recorded_of, at, strict=True)]
        tokens = np.stack([recorded.drafts[at] for recorded, at in places])
        probs = np.stack([recorded.probs[at] for recorded, at in places])
        counts = np.minimum([recorded.counts[at] for recorded, at in places], limits)
        if floors is not None:
            counts = np.minimum(counts, (np.cumprod(probs, axis=1) >= np.asarray(floors)[:, None]).sum(axis=1))
        return Drafts(tokens, probs, counts)

    def end(self, request: str, keep: bool = True) -> None:
        del self._at[request]


class Clock:
    """A latency form that follows a curve. It counts passes: each prediction is one. Use it for one rollout."""

    def __init__(self, curve: Curve, seed: int) -> None:
        self.curve = curve
        self._rng = np.random.default_rng([seed, 1])
        self.seconds = 0.0  # of all passes, without noise
        self._burst_left, self._burst_slows = 0, 1.0  # passes of the running burst; times as long as usual
        self.passes: list[tuple[float, float]] = []  # tokens, seconds without noise

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        seconds = float(self.curve.seconds(int(live), tokens - live, self.seconds))
        self.seconds += seconds
        self.passes.append((float(tokens), seconds))
        return np.array(self.curve.measured(seconds, self._rng) * self._burst())

    def _burst(self) -> float:
        """How many times as long as usual the coming pass takes."""
        if self._burst_left:
            self._burst_left -= 1
            return self._burst_slows
        if self.curve.burst and self._rng.random() < self.curve.burst:
            self._burst_left = int(self._rng.geometric(1 / self.curve.burst_passes))
            self._burst_slows = float(self._rng.uniform(1.5, 4))
        return 1.0


def roll_out(recorded: Sequence[Recorded], clock: Clock, budget: BudgetPolicy) -> TextEngine:
    """One rollout of all responses at once. The budget sees measured times. Returns the engine, which has counts."""
    engine = TextEngine(Times(clock), len(recorded), RecordedDrafter(recorded), budget, 2**20)
    work = workload(["problem"] * len(recorded), [each.tokens for each in recorded])
    engine.begin_step(work, range(len(work)))
    while engine.live or engine.waiting:
        engine.advance()
    engine.close_step()
    return engine


class KnownPrices(PassPrices):
    """Reads the curve instead of learning it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(ratio=64.0)
        self.learns = False
        self._clock = clock

    def table(self, live: int, context: int, most: int) -> Array:
        return self._clock.curve.seconds(live, np.arange(most + 1), self._clock.seconds)

    def cheapest(self, live: int, context: int) -> float:
        return 0.0
