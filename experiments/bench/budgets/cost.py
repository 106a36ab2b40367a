"""Measure the processor time of a budget's own decisions in a pass, on made-up drafts and without an engine."""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from das.budget import LiveRequest, TargetPass, make_budget
from das.drafter import Drafts

SIBLINGS = 8  # requests of each problem
MAX_DRAFT_TOKENS = 32  # the longest made-up draft


def cost_us(settings: Mapping[str, Any], live: int, passes: int = 640, rounds: int = 5) -> float:
    """Return the processor time that a budget needs, in us per pass of `live` requests.

    This is the time of the calls of limits, floors, trim, predict and observe_pass, in which the budget also refits its
    models. The result is the median over `rounds` of the mean over `passes`. A first round warms up and does not count.
    settings: those of the budget.
    """
    rng = np.random.default_rng(0)
    budget = make_budget(settings)
    for i in range(300):  # past requests, from whose lengths and acceptance the budget predicts
        generated = int(rng.lognormal(5, 1)) + 1
        budget.end(LiveRequest(f"past{i}", f"{i % 8}", 4000, generated=generated, num_drafted=100, num_accepted=30))
    budget.end_step()
    budget.begin_step(live)
    requests = [
        LiveRequest(f"{i}", f"{i // SIBLINGS}", 4000, generated=int(rng.integers(1, 200)), passes=30)
        for i in range(live)
    ]
    for request in requests:
        budget.begin(request)
    shape = live, MAX_DRAFT_TOKENS
    drafts = [
        Drafts(np.zeros(shape, np.int32), rng.uniform(0.3, 1, shape), rng.integers(0, 17, live)) for _ in range(64)
    ]
    costs = []
    for _ in range(rounds + 1):
        spent = 0.0
        for i in range(passes):
            noise = rng.uniform(0.9, 1.1)
            start = time.thread_time()
            draft_lengths = [0]
            if any(budget.limits(requests)):
                budget.floors(requests)
                draft_lengths = budget.trim(requests, drafts[i % 64])
            num_drafted = sum(draft_lengths)
            budget.predict(live, num_drafted, 200 * live)
            seconds = 3e-3 + (1e-4 * live + 5e-5 * num_drafted) * noise
            budget.observe_pass(TargetPass(live, num_drafted, num_drafted // 2, 200 * live, seconds))
            spent += time.thread_time() - start
            for request in requests:
                request.generated += i % 64 == 0
        costs.append(spent / passes * 1e6)
    return median(costs[1:])
