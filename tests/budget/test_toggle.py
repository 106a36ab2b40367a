"""The toggle on made-up engines: what it loses where drafting loses, and what it keeps of a gain."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from das.budget import BudgetPolicy, LiveRequest, TargetPass, make_budget
from das.budget.toggle import ENOUGH, RooflineToggle

STEPS = 6  # rollouts
NOISE = 0.05  # of a pass's time, relative
SETTLING = (1.0, 0.5, 0.4, 0.3, 0.1)  # as on the small policy
BURST = 20  # plain passes' time that other work has the machine
Seconds = Callable[[int, int], float]  # (live, drafted) -> seconds of a pass


@dataclass(frozen=True)
class MadeUp:
    """An engine with a model that drafts. Times in seconds."""

    base: float  # of a pass
    row: float  # for each live request
    token: float  # for each token of a pass
    beyond: float  # for each token beyond the knee, too
    knee: int
    cycle: float  # for each pass with drafts: the host's time
    switch: float  # for a pass without drafts directly behind one with drafts; of it SETTLING for those behind it
    draft_base: float  # of a draft pass
    draft_row: float  # for each of its rows
    gamma: int
    right: float  # probability that a drafted token is right
    requests: int
    length: int  # of the longest response
    bursts: float  # how many bursts of other work begin in BURST passes

    def target(self, live: int, drafted: int) -> float:
        """A pass of the policy, without draft passes."""
        tokens = live + drafted
        seconds = self.base + self.row * live + self.token * tokens + self.beyond * max(0, tokens - self.knee)
        return seconds + (self.cycle if drafted else 0.0)

    def draft(self, live: int) -> float:
        """A pass of the model that drafts."""
        return self.draft_base + self.draft_row * live


def drawn(seed: int) -> MadeUp:
    """An engine on which drafting takes from a third of the time to many times as long."""
    rng = np.random.default_rng(seed)
    base = 10 ** rng.uniform(-3, -1.5)
    return MadeUp(
        base=base,
        knee=int(rng.choice([8, 32, 128])),
        row=base * float(rng.choice([0.0, 0.02, 0.1])),
        token=base / float(rng.choice([16, 64, 512])),
        beyond=base / float(rng.choice([8, 64, 1000])),
        cycle=base * float(rng.choice([0.0, 0.1, 0.5])),
        switch=base * float(rng.choice([0.0, 0.4, 0.7])),
        draft_base=base * rng.uniform(0.05, 1.0),
        draft_row=base * float(rng.choice([0.0, 0.005, 0.03])),
        gamma=int(rng.choice([3, 5, 7])),
        right=float(rng.choice([0.3, 0.6, 0.8, 0.9, 0.97])),
        requests=int(rng.choice([1, 2, 4, 16, 48])),
        length=int(rng.choice([120, 480, 800])),
        bursts=float(rng.choice([0.0, 0.1, 0.3])),
    )


class Clock:
    """The times that a budget sees: with noise, and with bursts in which everything takes 1.3 to 4 times as long."""

    def __init__(self, engine: MadeUp, seed: int):
        self._engine, self._random = engine, np.random.default_rng(seed)
        self._now, self._until, self._slow = 0.0, 0.0, 1.0

    def timed(self, took: float, live: int, per_request: int) -> tuple[float, list[tuple[int, float]]]:
        """Seconds of a pass that usually takes `took`, and rows and seconds of the draft passes for it."""
        if self._now > self._until and self._random.random() < self._engine.bursts / BURST:
            self._until, self._slow = self._now + BURST * took, float(self._random.uniform(1.3, 4))
        slow = self._slow if self._now < self._until else 1.0
        factors = (slow * self._random.lognormal(0, NOISE, per_request + 1)).tolist()
        passes = [(live, self._engine.draft(live) * factor) for factor in factors[1:]]
        self._now += took * factors[0] + sum(seconds for _, seconds in passes)
        return took * factors[0], passes


def rollout(engine: MadeUp, budget: BudgetPolicy, clock: Clock, luck: np.random.Generator) -> float:
    """Seconds of a rollout, without noise and bursts. Which drafted tokens are right does not depend on the budget."""
    lengths = np.maximum(20, engine.length * luck.beta(1.5, 1.5, engine.requests)).astype(int)
    lengths[0] = engine.length
    right = luck.random((engine.requests, engine.length + 2 * engine.gamma)) < engine.right
    runs = np.zeros(right.shape, np.int64)  # how many tokens from here on are right, one behind another
    for t in range(right.shape[1] - 2, -1, -1):
        runs[:, t] = np.where(right[:, t], runs[:, t + 1] + 1, 0)
    requests = [LiveRequest(str(i), "p", engine.length, prompt=50) for i in range(engine.requests)]
    budget.begin_step(len(requests))
    for request in requests:
        budget.begin(request)
    total, limit, plain_passes = 0.0, 0, 0
    while requests:
        live, context = len(requests), sum(request.prompt + request.generated for request in requests)
        num_accepted = 0
        for request in requests:
            accepted = min(limit, int(runs[int(request.name), request.generated]))
            request.generated += accepted + 1
            num_accepted += accepted
        plain_passes = 0 if limit else plain_passes + 1  # of a row, the first ones of a rollout too
        took = engine.target(live, limit * live)
        if 0 < plain_passes <= len(SETTLING):
            took += engine.switch * SETTLING[plain_passes - 1]
        total += took + limit * engine.draft(live)
        seconds, passes = clock.timed(took, live, limit)
        budget.observe_pass(TargetPass(live, limit * live, num_accepted, context, seconds, draft_passes=passes))
        for request in requests:
            if request.generated >= lengths[int(request.name)]:
                budget.end(request)
        requests = [request for request in requests if request.generated < lengths[int(request.name)]]
        limit = max(budget.limits(requests)) if requests else 0
    budget.end_step()
    return total


def rollouts(engine: MadeUp, settings: dict[str, object], seed: int) -> list[float]:
    """Seconds of each rollout with this budget."""
    budget, clock, luck = make_budget(settings), Clock(engine, seed), np.random.default_rng(seed + 1)
    return [rollout(engine, budget, clock, luck) for _ in range(STEPS)]


def compared(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Seconds of each rollout on an engine: without drafts, always with them, with the toggle."""
    engine = drawn(seed)
    always = {"name": "fixed", "tokens": engine.gamma}
    none, drafting, toggled = (
        np.array(rollouts(engine, settings, seed))
        for settings in ({"name": "none"}, always, {"name": "roofline_toggle", "over": always})
    )
    return none, drafting, toggled


@pytest.mark.parametrize("seed", range(12))
def test_it_loses_nothing_and_keeps_what_drafting_gains(seed: int) -> None:
    """From the second rollout on. In the first, everything is new: a single try of very dear drafts may cost 30 %."""
    none, always, toggled = compared(seed)
    assert toggled[0] < 1.3 * none[0]
    none_s, always_s, toggled_s = (seconds[1:].sum() for seconds in (none, always, toggled))
    assert toggled_s < 1.03 * none_s
    if none_s > 1.2 * always_s:
        assert none_s - toggled_s > 0.75 * (none_s - always_s)


def toggle(count: int, **settings: object) -> RooflineToggle:
    """A toggle at the start of a rollout of so many requests."""
    budget = make_budget({"name": "roofline_toggle", "over": {"name": "fixed", "tokens": 4}, **settings})
    assert isinstance(budget, RooflineToggle)
    budget.begin_step(count)
    return budget


def live(count: int) -> list[LiveRequest]:
    return [LiveRequest(str(i), "p", 10**6, prompt=100) for i in range(count)]


def decode(
    budget: BudgetPolicy, count: int, passes: int, seconds: Seconds, accepted: float = 1.0, draft_s: float = 0.0
) -> np.ndarray:
    """Passes of so many requests. Whether each of them had drafts, bool [passes].

    accepted: share of the drafted tokens. draft_s: seconds of the draft passes of one drafted token each.
    """
    had, requests = [], live(count)
    for _ in range(passes):
        limits = budget.limits(requests)
        drafted = sum(limits)
        made = [(count, draft_s)] * max(limits) if draft_s else []
        took = seconds(count, drafted)
        budget.observe_pass(TargetPass(count, drafted, int(accepted * drafted), 100 * count, took, draft_passes=made))
        had.append(drafted > 0)
    return np.array(had)


def ridge(count: int, drafted: int) -> float:
    """With 4 drafted tokens that are all accepted, drafts save nothing from 64 requests on."""
    return 10e-3 * max(1.0, (count + drafted) / 64)


def test_off_while_wide_and_on_for_the_tail() -> None:
    budget = toggle(80)
    for _ in range(2):
        budget.begin_step(80)
        wide, tail = decode(budget, 80, 200, ridge), decode(budget, 16, 200, ridge)
        budget.end_step()
    assert wide.sum() < 10
    assert tail.sum() > 180
    speedups = np.array(budget.trace()["pass_speedup"])
    assert len(speedups) == 400
    assert speedups[:200] == pytest.approx(np.full(200, 1.0), abs=0.05)
    assert speedups[200:] == pytest.approx(np.full(200, 4.0), rel=0.1)
    assert budget.trace() == {"pass_speedup": []}
    budget.begin_step(80)
    assert not budget.on  # each rollout starts with it off


def test_it_stays_on_unless_it_loses() -> None:
    """Drafts that gain 2 % do not turn it on, and do not turn it off."""

    def seconds(of_drafts: float) -> Seconds:
        return lambda count, drafted: 5 * 10e-3 / of_drafts if drafted else 10e-3

    budget = toggle(4)
    decode(budget, 4, 100, seconds(1.5))
    assert budget.on
    decode(budget, 4, 300, seconds(1.02))
    assert budget.on
    decode(budget, 4, 300, seconds(0.8))
    assert not budget.on
    decode(budget, 4, 300, seconds(1.02))
    assert not budget.on


def test_it_notices_that_drafts_have_become_good() -> None:
    """Passes without drafts cannot show it, so drafts are tried at times."""
    for before, after in (((1.0, 9e-3), (1.0, 2e-3)), ((0.1, 0.0), (0.9, 0.0))):
        budget = toggle(4)
        for accepted, draft_s in (before, after):
            for _ in range(10):
                budget.begin_step(4)
                had = decode(budget, 4, 300, lambda _, drafted: 15e-3 if drafted else 10e-3, accepted, draft_s)
                budget.end_step()
            assert (had.mean() > 0.9) == ((accepted, draft_s) == after)


@pytest.mark.parametrize(("before", "plain", "dear", "most"), [(30e-3, 4e-3, 30e-3, 200), (15e-3, 10e-3, 90e-3, 16)])
def test_drafts_that_no_longer_pay_end(before: float, plain: float, dear: float, most: int) -> None:
    """Plain passes have become cheap, which only controls can show, or drafts dear, which every pass shows."""
    budget = toggle(4)
    decode(budget, 4, 200, lambda _, drafted: before if drafted else 10e-3)
    assert budget.on
    had = decode(budget, 4, 600, lambda _, drafted: dear if drafted else plain)
    assert not budget.on
    assert had.sum() < most


def test_it_leaves_marginal_ready() -> None:
    """Passes in which the toggle is off do not count as passes whose drafts did not pay."""
    budget = toggle(80, margin=100.0, over={"name": "marginal", "tokens": 4})
    assert not decode(budget, 64, 50, ridge).any()
    budget.margin = 0.05
    assert any(budget.limits(live(80)))


def test_a_drafter_that_says_nothing_costs_nothing() -> None:
    """Then drafts are asked for in every pass, and what the toggle predicts stays finite."""
    budget = toggle(4)
    for _ in range(50):
        asked = any(budget.limits(live(4)))
        budget.observe_pass(TargetPass(4, 0, 0, 400, 10e-3))
    assert asked
    assert all(map(math.isfinite, budget.trace()["pass_speedup"][ENOUGH:]))
