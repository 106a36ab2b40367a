"""What a budget itself costs a decode pass: its decisions over made-up drafts, without an engine."""

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np

from das.budget import LiveRequest, TargetPass, make_budget
from das.drafter import Drafts

SIBLINGS, LONGEST = 8, 32  # requests a problem; tokens a made-up draft may have


def cost_us(settings: Mapping[str, Any], live: int, passes: int = 640, rounds: int = 5) -> float:
    """Processor time of a budget, in us a pass of `live` requests: limits, floors, trim, prediction and observation,
    refits of its models included. The median of `rounds` means over `passes` passes, after as many to warm up."""
    rng = np.random.default_rng(0)
    budget = make_budget(settings)
    for i in range(300):  # lengths and acceptance to predict from
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
    drafts = [
        Drafts(np.zeros((live, LONGEST), np.int32), rng.uniform(0.3, 1, (live, LONGEST)), rng.integers(0, 17, live))
        for _ in range(64)
    ]
    costs = []
    for _ in range(rounds + 1):
        spent = 0.0
        for i in range(passes):
            noise = rng.uniform(0.9, 1.1)
            start = time.thread_time()
            kept = [0]
            if any(budget.limits(requests)):
                budget.floors(requests)
                kept = budget.trim(requests, drafts[i % 64])
            drafted = sum(kept)
            budget.predict(live, drafted, 200 * live)
            seconds = 3e-3 + (1e-4 * live + 5e-5 * drafted) * noise
            budget.observe_pass(TargetPass(live, drafted, drafted // 2, 200 * live, seconds))
            spent += time.thread_time() - start
            for request in requests:
                request.generated += i % 64 == 0
        costs.append(spent / passes * 1e6)
    return median(costs[1:])
