"""One rollout on several engines: who gets which request, whose clock goes next, when it is over."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from das.budget.remaining import RemainingLength
from das.replay.engine import Engine
from das.replay.text_engine import TextEngine
from das.replay.workload import Workload

PLACEMENTS = ("round_robin", "random", "longest_first")


def place(
    lengths: np.ndarray,
    groups: Sequence[str],
    engines: int,
    how: str,
    slots: int = 256,
    token: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """Requests of each engine, in the order they are sent. A group (problem) goes to one engine, whole: siblings draft
    from each other.

    lengths: predicted tokens of each request. Only longest_first looks at them: groups go, the longest first, where the
    engine would be done soonest, and an engine sends its longest requests first. An engine is expected to need
    max(longest request, tokens / slots) passes; token: what a request in a pass adds to its price, as a share of it
    (c_tok / c_base).
    """
    if engines < 1:
        raise ValueError(f"at least 1 engine is needed, got {engines}")
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    order = list(members.values())
    placed: list[list[int]] = [[] for _ in range(engines)]
    match how:
        case "round_robin":
            for turn, ids in enumerate(order):
                placed[turn % engines] += ids
        case "random":
            random = np.random.default_rng(seed)
            for ids, engine in zip(order, random.integers(engines, size=len(order)).tolist(), strict=True):
                placed[engine] += ids
        case "longest_first":
            order.sort(key=lambda ids: (-lengths[ids].max(), -lengths[ids].sum()))
            longest, tokens = np.zeros(engines), np.zeros(engines)
            for ids in order:
                after = tokens + lengths[ids].sum()
                done = np.maximum(np.maximum(longest, lengths[ids].max()), after / slots) + token * after
                engine = int(np.argmin(done))
                placed[engine] += ids
                longest[engine] = max(longest[engine], lengths[ids].max())
                tokens[engine] = after[engine]
            for mine in placed:
                mine.sort(key=lambda i: -lengths[i])
        case other:
            raise ValueError(f"placement={other}: choose one of {', '.join(PLACEMENTS)}")
    return placed


def predicted_lengths(known: RemainingLength, groups: Sequence[str]) -> np.ndarray:
    """Tokens expected of each request before it starts. Nobody knows which sibling will be the longest, but how long
    the longest of so many is likely to be: a group's requests get the quantiles of its problem."""
    lengths = np.zeros(len(groups))
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    for group, ids in members.items():
        lengths[ids] = known.quantiles(group, (np.arange(len(ids)) + 0.5)[::-1] / len(ids))
    return lengths


@dataclass(frozen=True)
class Step:
    """What one rollout cost. Times in seconds.

    bound: no placement of these passes ends earlier: max(the neediest request alone on an engine, all passes with every
    slot of every engine taken).
    """

    rollout_s: float
    tokens: int
    passes: int
    drafted: int
    accepted: int
    draft_s: float
    busy_s: tuple[float, ...]  # of each engine, until its last request ended
    bound: float
    timelines: tuple[dict[str, np.ndarray], ...]

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes

    def row(self) -> dict[str, Any]:
        """Numbers for metrics.jsonl, named as in docs/metrics.md."""
        return {
            "rollout_s": self.rollout_s,
            "tokens": self.tokens,
            "passes": self.passes,
            "tokens_per_pass": self.tokens_per_pass,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "draft_s": self.draft_s,
            "over_bound": self.rollout_s / self.bound,
        }


def simulate_rollout(
    work: Workload, engines: Sequence[Engine], placed: Sequence[Sequence[int]], clock: int, replace: bool = False
) -> Step:
    """Simulate one step. placed: requests of each engine; clock: the drafters' once the step is over.

    replace: an engine with a free slot and nobody waiting takes the last of the longest queue.
    """
    for engine, mine in zip(engines, placed, strict=True):
        engine.begin_step(work, mine)
    events = [(0.0, e) for e, engine in enumerate(engines) if engine.waiting or replace]
    heapq.heapify(events)
    while events:
        _, e = heapq.heappop(events)
        engine = engines[e]
        if replace:
            _take(engine, engines)
        if engine.live or engine.waiting:
            engine.advance()
            heapq.heappush(events, (engine.now, e))
    for engine in engines:
        engine.close_step()
    drafters = [engine.draft_round.drafter for engine in engines if isinstance(engine, TextEngine)]
    for drafter in {id(drafter): drafter for drafter in drafters}.values():  # engines may share one
        drafter.end_step(clock)
    return _report(work, engines)


def _take(engine: Engine, engines: Sequence[Engine]) -> None:
    while engine.free > len(engine.waiting):
        source = max(engines, key=lambda other: len(other.waiting))
        takes_itself = source.free if source.now <= engine.now else 0  # an engine ahead has not admitted for now
        if source is engine or len(source.waiting) <= takes_itself:
            return
        engine.waiting.append(source.waiting.pop())


def _report(work: Workload, engines: Sequence[Engine]) -> Step:
    busy = tuple(engine.now for engine in engines)
    return Step(
        rollout_s=max(busy),
        tokens=len(work.tokens),
        passes=sum(engine.passes for engine in engines),
        drafted=sum(engine.num_drafted for engine in engines),
        accepted=sum(engine.num_accepted for engine in engines),
        draft_s=sum(engine.draft_s for engine in engines),
        busy_s=busy,
        bound=lower_bound(work, engines),
        timelines=tuple(engine.timeline.arrays() for engine in engines),
    )


def lower_bound(work: Workload, engines: Sequence[Engine]) -> float:
    """Seconds that the passes just run take at least, wherever they are placed; drafting and prompts come on top.

    A pass is cheapest a request where all slots are taken, as long as its time rises less than in proportion; a request
    has at least as much context as it had passes.
    """
    times, slots = engines[0].times, engines[0].slots
    needed = np.zeros(len(work), np.int64)
    for engine in engines:
        needed[list(engine.needed)] = list(engine.needed.values())
    alone = float(times.plain(1, work.prompt, int(needed.max())).sum())
    full = np.full(len(work), float(slots))
    each = times.form.predict(full, full, slots * (work.prompt + (needed - 1) / 2)) + times.host
    return max(alone, float(needed @ each) / slots / len(engines))
