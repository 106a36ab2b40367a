"""Simulated engines against a slow, obvious simulation: a loop over requests and tokens, one pass at a time."""

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import pytest

from das.budget import BudgetPolicy, LiveRequest, TargetPass, make_budget
from das.budget.policies import Fixed
from das.draft_round import RowsAhead, admitted
from das.drafter import Drafts, HistoryDrafter
from experiments.simulate.engine import (
    ByDepth,
    PlainEngine,
    Profile,
    ProfiledDrafter,
    ProfileEngine,
    simulate_rollout,
)
from experiments.simulate.text_engine import PROMPT, TextEngine
from experiments.simulate.times import Affine, Drafting, PassWork, Priced, Scaled, Table, Times
from experiments.simulate.workload import Workload, workload

FORMS = (
    Drafting(5e-3, 1e-4, 2e-3, 3e-4),
    Affine(5e-3, 2e-4),
    Table((1.0, 10.0, 40.0), (4e-3, 5e-3, 9e-3)),
)


def made(seed: int, problems: int = 3, group: int = 4) -> Workload:
    """Problems with short responses, in which siblings repeat each other's phrases."""
    random = np.random.default_rng(seed)
    names, texts = [], []
    for problem in range(problems):
        phrases = [random.integers(0, 50, random.integers(3, 12)) for _ in range(6)]
        for _ in range(group):
            chosen = random.integers(0, 6, random.integers(1, 20))
            names.append(f"p{problem}")
            texts.append(np.concatenate([phrases[i] for i in chosen]))
    return workload(names, texts, prompt=int(random.integers(0, 30)))


def common_start(draft: list[int], text: list[int]) -> int:
    """How many tokens of a draft are those of the text."""
    return sum(takewhile(bool, map(operator.eq, draft, text)))


class ForFew(BudgetPolicy):
    """Drafts while few requests are live."""

    max_draft_tokens = 8

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [8 if len(live) <= 3 else 0] * len(live)


class SlowRollout(NamedTuple):
    seconds: float
    counts: tuple[int, int, int]  # passes, drafted and accepted tokens
    finished: dict[int, float]  # when each request ended


def slow_text(
    work: Workload,
    times: Times,
    max_num_seqs: int,
    drafter: HistoryDrafter,
    budget: BudgetPolicy,
    max_tokens: int,
    ahead: RowsAhead | None = None,
) -> SlowRollout:
    """A rollout, one request and one token after the other. The caller ends the drafter's step.

    ahead: how many rows a pass has is decided before its drafts are known, unless a request joins in it. The drafted
    tokens that are likeliest to be accepted fill them. Rows that none fills are wrong.
    """
    budget.begin_step(len(work))
    waiting = deque(range(len(work)))
    live: list[tuple[int, LiveRequest]] = []
    finished: list[LiveRequest] = []
    finished_at: dict[int, float] = {}
    drafts: dict[int, list[int]] = {}
    now = 0.0
    asked = 0
    passes = drafted = accepted = 0
    prompt = np.arange(min(work.prompt, 128)) + PROMPT
    while waiting or live:
        joined = []
        while waiting and len(live) < max_num_seqs:
            i = waiting.popleft()
            joined.append((i, LiveRequest(str(i), work.problems[i], max_tokens, prompt=work.prompt)))
            live.append(joined[-1])
        pass_drafted, pass_accepted = sum(len(drafts.get(i, ())) for i, _ in live), 0
        context = sum(work.prompt + r.generated for _, r in live)
        emitted: list[list[int]] = []
        for i, request in live:
            text, draft = work.response(i).tolist()[request.generated :], drafts.get(i, [])
            emitted.append(text[: common_start(draft, text) + 1])
            count = len(emitted[-1]) - 1
            request.generated += len(emitted[-1])
            request.num_drafted += len(draft)
            request.num_accepted += count
            pass_accepted += count
        done = PassWork(len(live), pass_drafted, context, len(live) + pass_accepted, asked)
        seconds = times.seconds(replace(done, joined=len(joined), prompt=len(joined) * work.prompt))
        now += seconds
        passes, drafted, accepted = passes + len(live), drafted + pass_drafted, accepted + pass_accepted
        for request in finished:
            drafter.end(request.name)
            budget.end(request)
        for _, request in joined:
            drafter.begin(request.name, request.problem, prompt)
            budget.begin(request)
        if not joined:
            budget.observe_pass(TargetPass(len(live), pass_drafted, pass_accepted, context, seconds))
        requests = [request for _, request in live]
        drafter.observe_batch([r.name for r in requests], emitted)
        limits = [
            max(0, min(budget.max_draft_tokens, max_tokens - r.generated - 1, limit))
            for r, limit in zip(requests, budget.limits(requests), strict=True)
        ]
        finished = [r for i, r in live if r.generated == work.lengths[i]]
        joins = bool(waiting) and len(live) - len(finished) < max_num_seqs
        going, best = len(live) - len(finished), budget.max_draft_tokens
        total = ahead.of(going, best * going) if ahead and going else 0
        drafts, asked, num_wanted = {}, 0, 0
        proposed = Drafts(np.empty((len(live), 0)), np.empty((len(live), 0)), np.zeros(len(live), np.int64))
        if any(limits):
            names, floors = [r.name for r in requests], budget.floors(requests)
            proposed = drafter.propose_batch(names, limits, floors)
            counts = budget.trim(requests, proposed)
            asked, num_wanted = len(live), sum(counts)
            drafts = {i: list(proposed[row].tokens)[: counts[row]] for row, (i, _) in enumerate(live)}
        if ahead:
            ahead.note(len(live), num_wanted)
        if ahead and not joins:
            counts = admitted(proposed, np.array([0 if r in finished else best for r in requests]), total).tolist()
            drafts = {i: [*proposed[row].tokens, *[-1] * best][: counts[row]] for row, (i, _) in enumerate(live)}
        finished_at |= {i: now for i, r in live if r.generated == work.lengths[i]}
        live = [(i, r) for i, r in live if r.generated < work.lengths[i]]
    for request in finished:
        drafter.end(request.name)
    return SlowRollout(now, (passes, drafted, accepted), finished_at)


@pytest.mark.parametrize("seed", range(12))
def test_plain_engine_is_the_loop(seed: int) -> None:
    work, max_num_seqs = made(seed), 1 + seed % 7
    times = Times(FORMS[seed % 3], prefill=1e-5)
    step = simulate_rollout(work, [engine := PlainEngine(times, max_num_seqs)], [range(len(work))], 1)
    expected = slow_text(work, times, max_num_seqs, HistoryDrafter(), make_budget({"name": "none"}), 400)
    assert step.rollout_s == pytest.approx(expected.seconds)
    assert engine.finished == pytest.approx(expected.finished)
    assert step.passes == step.tokens == len(work.tokens)
    assert step.timelines[0]["emitted"].sum() == step.tokens


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("make", [lambda: Fixed(5), ForFew])
@pytest.mark.parametrize("ahead", [False, True])
def test_text_engine_is_the_loop(seed: int, make: Callable[[], BudgetPolicy], ahead: bool) -> None:
    max_num_seqs = 1 + seed % 7
    times = Times(FORMS[seed % 3], prefill=1e-5, draft_request=1e-5)
    fast, slow = HistoryDrafter(min_prob=0.05), HistoryDrafter(min_prob=0.05)
    engine = TextEngine(times, max_num_seqs, fast, make(), 400, ahead=RowsAhead((4, 8)) if ahead else None)
    plan = RowsAhead((4, 8)) if ahead else None
    for tick in (1, 2):  # the second step drafts from the history of the first
        work = made(seed)
        step = simulate_rollout(work, [engine], [range(len(work))], tick)
        expected = slow_text(work, times, max_num_seqs, slow, make(), 400, plan)
        slow.move_window(tick)
        assert (step.passes, step.num_drafted, step.num_accepted) == expected.counts
        assert step.rollout_s == pytest.approx(expected.seconds)
        assert step.timelines[0]["emitted"].sum() == step.tokens
    assert step.num_accepted > 0
    assert np.array_equal(fast.weights(), slow.weights())


def test_marginal_budget_sees_the_simulated_times() -> None:
    """The budget learns the latency form of the engine, although its assumed ratio says that drafts do not pay."""
    work = made(1, problems=4, group=16)
    form = Drafting(base=20e-3, row=0.0, drafting=0.0, token=1e-4)
    budget = make_budget({"name": "marginal", "tokens": 16, "ratio": 64})
    engine = TextEngine(Times(form), 64, HistoryDrafter(min_prob=0.05), budget, 400)
    for tick in range(1, 6):
        simulate_rollout(work, [engine], [range(len(work))], tick)
    assert budget.predict(8, 16, 0) == pytest.approx(float(form.predict(8, 24, 0)), rel=0.05)


def test_profile_engine_counts_cycles() -> None:
    work = workload(["a", "b"], [np.arange(40), np.arange(20)])
    model = ProfiledDrafter(Profile((1.0, 1.0, 1.0)), lambda b, x: 1e-3 * b, lambda b, x: 10e-3, host=1e-3)
    step = simulate_rollout(work, [ProfileEngine(Times(FORMS[0]), 2, model, 0)], [[0, 1]], 1)
    assert step.passes == 10 + 5
    assert step.rollout_s == pytest.approx(5 * (10e-3 + 6e-3 + 1e-3) + 5 * (10e-3 + 3e-3 + 1e-3))
    assert step.num_drafted == 45


def test_toggle_waits_for_few_requests() -> None:
    """Drafting costs time for each request, so it pays only once most requests have finished."""
    lengths = [10] * 30 + [300, 300]
    work = workload([str(i) for i in range(32)], [np.zeros(n, int) for n in lengths])
    form = Drafting(10e-3, 0.0, 0.0, 0.0)
    model = ProfiledDrafter(Profile((0.9,) * 3), lambda b, x: 1e-3 * b, lambda b, x: 11e-3, pays_from=1.05)
    step = simulate_rollout(work, [ProfileEngine(Times(form), 32, model, 0)], [range(32)], 1)
    line = step.timelines[0]
    plain = line["tokens"] == line["live"]
    assert plain[:10].all()
    assert not plain[10:].any()
    assert step.rollout_s < 0.1 + 290 * 10e-3


def test_acceptance_by_depth() -> None:
    """Everything is accepted in the first 40 tokens, and nothing after them."""
    work = workload(["a"], [np.zeros(100, int)])
    profile = ByDepth((0, 40), (Profile((1.0,) * 3), Profile((0.0,) * 3)))
    model = ProfiledDrafter(profile, lambda b, x: 0.0, lambda b, x: 1e-3)
    step = simulate_rollout(work, [ProfileEngine(Times(FORMS[0]), 1, model, 0)], [[0]], 1)
    assert step.passes == 10 + 60


def test_doubt_is_about_what_drafts_add_and_scale_about_requests() -> None:
    times = Times(Drafting(5e-3, 1e-4, 2e-3, 3e-4), draft_request=1e-5, prefill=1e-6)
    work = PassWork(4, 8, 100, 9, asked=4, joined=1, prompt=50, new_prompt=50)
    plain = times.seconds(work.undrafted())
    assert Priced(times, 1.3).seconds(work) == pytest.approx(plain + 1.3 * (times.seconds(work) - plain))
    doubled = PassWork(8, 16, 200, 18, asked=8, joined=2, prompt=100, new_prompt=100)
    assert Scaled(times, 2.0).seconds(work) == times.seconds(doubled)
    assert Scaled(times, 2.0).plain(4, 100, 3) == pytest.approx(times.plain(8, 200, 3))
