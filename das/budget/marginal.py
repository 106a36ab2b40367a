"""Marginal budget: keep the drafted tokens that make this pass emit the most tokens per second, and no others."""

from collections.abc import Sequence

import numpy as np

from das.budget.latency import LatencyModel
from das.budget.policies import LiveRequest
from das.drafter import Draft


class Marginal:
    """With n live requests and kept tokens of acceptance probability P_i (that they and all before them hold), a pass
    emits n + sum P_i tokens in c_base + c_tok (n + k) seconds. Tokens are taken in order of P while that rate rises:
    wide batches draft little, the last long requests draft far.

    tokens: the most a request is given. ratio: c_base / c_tok, in tokens, assumed until the engine's passes tell.
    """

    def __init__(self, tokens: int, ratio: float):
        if tokens < 1:
            raise ValueError(f"budget.tokens must be at least 1, got {tokens}; for no speculation use arm=none")
        self.longest = tokens
        self.latency = LatencyModel(ratio)

    def limits(self, live: Sequence[LiveRequest]) -> list[int]:
        return [self.longest] * len(live)

    def trim(self, live: Sequence[LiveRequest], drafts: Sequence[Draft]) -> list[int]:
        reach = [np.cumprod(draft.probs) for draft in drafts]
        falling = np.sort(np.concatenate(reach))[::-1]
        if not len(falling):
            return [0] * len(drafts)
        k = np.arange(len(falling))
        emitted = len(live) + np.concatenate(([0.0], np.cumsum(falling)[:-1]))  # before token k is added
        rises = falling > emitted / (self.latency.ratio + len(live) + k)
        kept = len(falling) if rises.all() else int(np.argmin(rises))
        floor = falling[kept - 1] if kept else np.inf
        return [int(np.searchsorted(-chances, -floor, side="right")) for chances in reach]

    def observe_pass(self, tokens: int, seconds: float) -> None:
        self.latency.observe(tokens, seconds)

    def end(self, request: LiveRequest) -> None:
        pass

    def end_step(self) -> None:
        pass
