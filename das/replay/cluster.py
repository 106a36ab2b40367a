"""One rollout on several simulated engines that know all their requests from the start, and how long it takes.

A rollout whose requests are placed while it runs is in dispatched.py.
"""

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
    max_num_seqs: int = 256,
    token: float = 0.0,
    seed: int = 0,
) -> list[list[int]]:
    """The requests of each engine, in the order in which they are sent.

    All requests of a group (a problem) go to one engine, because siblings draft from each other.

    lengths: predicted tokens of each request; only longest_first uses them. It takes the groups from the longest to the
    shortest, and gives each to the engine that would finish first with it. An engine sends its longest requests first.
    It is expected to need max(longest request, tokens / max_num_seqs) passes.
    token: what one request adds to the time of a pass, as a share of that time (c_tok / c_base).

    Raises ValueError for a placement that is not in PLACEMENTS, and for fewer engines than one.
    """
    if engines < 1:
        raise ValueError(f"at least 1 engine is needed, got {engines}")
    group_ids = list(_members(groups).values())
    placed: list[list[int]] = [[] for _ in range(engines)]
    match how:
        case "round_robin":
            for turn, ids in enumerate(group_ids):
                placed[turn % engines] += ids
        case "random":
            random = np.random.default_rng(seed)
            for ids, engine in zip(group_ids, random.integers(engines, size=len(group_ids)).tolist(), strict=True):
                placed[engine] += ids
        case "longest_first":
            group_ids.sort(key=lambda ids: (-lengths[ids].max(), -lengths[ids].sum()))
            longest, tokens = np.zeros(engines), np.zeros(engines)
            for ids in group_ids:
                tokens_after = tokens + lengths[ids].sum()
                passes = np.maximum(np.maximum(longest, lengths[ids].max()), tokens_after / max_num_seqs)
                engine = int(np.argmin(passes + token * tokens_after))
                placed[engine] += ids
                longest[engine] = max(longest[engine], lengths[ids].max())
                tokens[engine] = tokens_after[engine]
            for requests in placed:
                requests.sort(key=lambda i: -lengths[i])
        case _:
            raise ValueError(f"placement={how}: choose one of {', '.join(PLACEMENTS)}")
    return placed


def _members(groups: Sequence[str]) -> dict[str, list[int]]:
    """The requests of each group, in order."""
    members: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        members.setdefault(group, []).append(i)
    return members


def predicted_lengths(learned: RemainingLength, groups: Sequence[str]) -> np.ndarray:
    """Tokens expected of each request before it starts.

    Nobody knows which sibling will be the longest, but the length of the longest of so many can be estimated. So the
    requests of a group get evenly spaced quantiles of their problem's lengths, the longest first.
    """
    lengths = np.zeros(len(groups))
    for group, ids in _members(groups).items():
        lengths[ids] = learned.quantiles(group, (np.arange(len(ids)) + 0.5)[::-1] / len(ids))
    return lengths


@dataclass(frozen=True)
class Step:
    """What one rollout cost. Times are in seconds."""

    rollout_s: float
    tokens: int
    passes: int  # target passes, summed over requests
    num_drafted: int
    num_accepted: int
    draft_s: float
    busy_s: tuple[float, ...]  # for each engine: when its last request finished
    bound: float  # no placement of these passes takes less: see lower_bound
    timelines: tuple[dict[str, np.ndarray], ...]  # for each engine: see Timeline.arrays

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a target pass emitted for a request, on average."""
        return self.tokens / self.passes

    def row(self) -> dict[str, Any]:
        """Numbers for metrics.jsonl, named as in docs/metrics.md."""
        return {
            "rollout_s": self.rollout_s,
            "tokens": self.tokens,
            "passes": self.passes,
            "tokens_per_pass": self.tokens_per_pass,
            "drafted": self.num_drafted,
            "accepted": self.num_accepted,
            "draft_s": self.draft_s,
            "over_bound": self.rollout_s / self.bound,
        }


def simulate_rollout(
    work: Workload,
    engines: Sequence[Engine],
    placed: Sequence[Sequence[int]],
    next_history_tick: int,
) -> Step:
    """Simulate the rollout of one step. The engine whose clock is earliest runs its next pass, until all are done.

    placed: the requests of each engine. next_history_tick: the drafters' history tick once the step is over.
    """
    for engine, requests in zip(engines, placed, strict=True):
        engine.begin_step(work, requests)
    events = [(0.0, e) for e, engine in enumerate(engines) if engine.waiting]
    heapq.heapify(events)
    while events:
        _, e = heapq.heappop(events)
        engine = engines[e]
        if engine.live or engine.waiting:
            engine.advance()
            heapq.heappush(events, (engine.now, e))
    end_rollout(engines, next_history_tick)
    return report(work, engines, max(engine.now for engine in engines))


def end_rollout(engines: Sequence[Engine], next_history_tick: int) -> None:
    """Close the step on all engines, and move the window of their drafters, which they may share."""
    for engine in engines:
        engine.close_step()
    drafters = [engine.draft_round.drafter for engine in engines if isinstance(engine, TextEngine)]
    for drafter in {id(drafter): drafter for drafter in drafters}.values():
        drafter.end_step(next_history_tick)


def report(work: Workload, engines: Sequence[Engine], rollout_s: float) -> Step:
    """What a rollout cost that ended after `rollout_s` seconds."""
    return Step(
        rollout_s=rollout_s,
        tokens=len(work.tokens),
        passes=sum(engine.passes for engine in engines),
        num_drafted=sum(engine.num_drafted for engine in engines),
        num_accepted=sum(engine.num_accepted for engine in engines),
        draft_s=sum(engine.draft_s for engine in engines),
        busy_s=tuple(engine.now for engine in engines),
        bound=lower_bound(work, engines),
        timelines=tuple(engine.timeline.arrays() for engine in engines),
    )


def lower_bound(work: Workload, engines: Sequence[Engine]) -> float:
    """Seconds that the passes just run take at least, wherever the requests are placed.

    It is the larger of two times: that of the request with the most passes, alone on an engine, and that of all passes
    on engines that are always full. Drafting and prompts would come on top. A pass costs least per request when the
    engine is full, as long as its time rises less than in proportion to the requests. A request has at least as much
    context as it had passes.
    """
    times, max_num_seqs = engines[0].times, engines[0].max_num_seqs
    needed = np.zeros(len(work), np.int64)
    for engine in engines:
        needed[list(engine.needed)] = list(engine.needed.values())
    alone_s = float(times.plain(1, work.prompt, int(needed.max())).sum())
    full = np.full(len(work), float(max_num_seqs))
    pass_s = times.form.predict(full, full, max_num_seqs * (work.prompt + (needed - 1) / 2)) + times.host
    return max(alone_s, float(needed @ pass_s) / max_num_seqs / len(engines))
