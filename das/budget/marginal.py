"""Marginal budget: keep the drafted tokens that make this pass emit the most tokens per second, and no others."""

from collections.abc import Sequence

import numpy as np

from das.budget.latency import LatencyModel
from das.budget.policies import BudgetPolicy, LiveRequest, TargetPass
from das.drafter import Drafts


class Marginal(BudgetPolicy):
    """tokens: the most a request is given. ratio: as in LatencyModel."""

    def __init__(self, tokens: int, ratio: float):
        if tokens < 1:
            raise ValueError(
                f"budget.tokens must be at least 1, got {tokens}; for no drafts use budget=none or arm=none"
            )
        self.longest = tokens
        self.latency = LatencyModel(ratio)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.longest] * len(live)

    def trim(self, live: Sequence[LiveRequest], drafts: Drafts) -> list[int]:
        form = self.latency.form
        reach = np.cumprod(drafts.probs, axis=1)
        reach[np.arange(drafts.probs.shape[1]) >= drafts.counts[:, None]] = 0.0
        emitted, seconds = float(len(live)), form.base + form.row * len(live)
        floor = np.inf
        for chance in np.sort(reach[reach > 0])[::-1].tolist():
            if chance * seconds <= emitted * form.token:
                break
            floor = chance
            emitted += chance
            seconds += form.token
        return np.count_nonzero(reach >= floor, axis=1).tolist()

    def observe_pass(self, done: TargetPass) -> None:
        self.latency.observe(done)

    def predict(self, live: int, drafted: int, context: int) -> float:
        return self.latency.predict(live, drafted, context)
