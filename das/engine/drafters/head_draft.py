"""Drafts from a history and an EAGLE-3 head (arm das_eagle3).

The history drafts first, which takes no pass of a model. Where the head is expected to do better, it drafts up to
`passes` tokens, drawn with the verifier's own noise (das/engine/coupled.py), and the history goes on behind them.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from das.drafter import Drafts, HistoryDrafter
from das.drafter.alternatives import Alternatives
from das.engine.drafters.head_passes import HeadPasses
from das.engine.drafters.model_drafter import ModelDrafter

logger = logging.getLogger("vllm.das")
BROKEN = "the draft head computed values that are not finite; the history drafts alone until new weights come"


class HeadDrafter(ModelDrafter):
    """Drafts chains for the requests of one engine.

    passes   the most tokens of the head in a draft
    worth, history: as ModelDrafter has them

    A depth is computed for all requests that the head is expected to draft better for, at once, as long as its tokens
    are expected to save more time than the passes take.
    """

    def __init__(self, passes: int, worth: Callable[[], float], history: HistoryDrafter):
        super().__init__(passes, worth, history)
        self._passes: HeadPasses | None = None
        self._behind = 0.0  # tokens that the history usually adds to accepted ones of the head
        self._broken: int | None = None  # the version of the weights at which the head computed values not finite

    def attach(self, runner: Any) -> None:
        """As ModelDrafter has it."""
        if self._runner is not runner:
            self._runner, self._passes = runner, HeadPasses(runner)

    def keep(self, aux_hidden_states: list[torch.Tensor]) -> None:
        """What the pass of the policy that just ended computed for the head. Called after every pass."""
        assert self._passes is not None
        self._passes.keep(aux_hidden_states)

    def end(self, request: str, keep: bool = True) -> None:
        """As ModelDrafter has it."""
        super().end(request, keep)
        if self._passes is not None:
            self._passes.forget(request)

    def state(self) -> dict[str, np.ndarray]:
        """As ModelDrafter has it."""
        return {**super().state(), "behind": np.array(self._behind)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """As ModelDrafter has it."""
        super().restore(state)
        self._behind = float(state["behind"])

    @torch.inference_mode()
    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelDrafter has it."""
        assert self.history is not None
        self._passes_made = []
        alternatives = Alternatives(limits, floors, self.history.propose_batch(requests, limits, floors))
        passes, runner = self._passes, self._runner
        assert passes is not None
        usable = self.most_passes or 0 if self._broken != runner.das_weights_version else 0
        for left in range(usable, 0, -1):
            among, gain = alternatives.open(self._value(left))
            if not len(among):
                break
            num_rows, later = len(among), (left - 1) * self.price.seconds(len(among))
            # What it costs at least. Declining must be cheap, because it is the rule where the head does not pay.
            if not self._pays(gain, self.price.seconds(num_rows) + later):
                break
            if not self._passes_made:
                rows = np.array([runner.input_batch.req_id_to_index[name] for name in requests], np.int64)
                passes.begin(rows)
                num_rows = passes.num_unread(among)
                if not self._pays(gain, self.price.seconds(num_rows) + later):
                    break
            start = time.perf_counter()
            if not self._passes_made:
                self.sampler.begin(runner, rows)
                hidden = passes.read(among)
            else:
                hidden = passes.go_on(among, alternatives.last_tokens())
            if not bool(torch.isfinite(hidden).all()):
                self._broken = runner.das_weights_version
                self._alarms.append(BROKEN)
                logger.error("speculation: %s", BROKEN)
                break
            drawn, likely = self.sampler.draw(runner.drafter.model.compute_logits(hidden).float(), among)
            alternatives.append(drawn, likely)
            self._ask_history(requests, alternatives)
            self._note_pass(num_rows, time.perf_counter() - start, likely)
        return alternatives.drafts()

    def _value(self, passes: int) -> float:
        """Tokens that so many tokens of the head, and the history behind them, are usually expected to emit."""
        reach = self._usual ** np.arange(1, passes + 1)
        return float(reach.sum() + reach[-1] * self._behind)

    def _ask_history(self, requests: Sequence[str], alternatives: Alternatives) -> None:
        """Let the history draft behind the head's tokens."""
        assert self.history is not None
        among, tokens, room, floors = alternatives.behind()
        if not len(among):
            return
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        behind = alternatives.offer(drafts)
        self._behind += 0.02 * (float(behind.mean()) - self._behind)
