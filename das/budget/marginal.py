"""Marginal budget: keep the drafted tokens that make this pass emit the most tokens per second, and no others."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import mul, neg

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
        reach = [
            list(accumulate(draft.probs, mul)) for draft in drafts
        ]  # Python floats: NumPy costs three times as much
        emitted, tokens = float(len(live)), self.latency.ratio + len(live)
        floor = math.inf
        for chance in sorted(chain.from_iterable(reach), reverse=True):
            if chance * tokens <= emitted:
                break
            floor = chance
            emitted += chance
            tokens += 1
        return [bisect_right(chances, -floor, key=neg) for chances in reach]

    def observe_pass(self, tokens: int, seconds: float) -> None:
        self.latency.observe(tokens, seconds)

    def end(self, request: LiveRequest) -> None:
        pass

    def end_step(self) -> None:
        pass
