"""An EAGLE-3 head that drafts beside the history of past responses (method das_eagle3).

das/model_drafts/either_or.py calls it. Its tokens are drawn with the verifier's own noise (das/verify/coupled.py).
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from das.engine.drafters.engine_model import EngineModel
from das.model_drafts.drafter import Drawn

if TYPE_CHECKING:
    from das.engine.runner.head_passes import HeadPasses, PolicyPass
    from das.engine.runner.runner import Runner


class HeadDraft(EngineModel):
    """The draft head that vLLM loaded. It implements das.model_drafts.either_or.HeadModel."""

    BROKEN = "the draft head computed values that are not finite; the history drafts alone until new weights come"

    def __init__(self) -> None:
        super().__init__()
        self._passes: HeadPasses
        self._drafting = np.empty(0, np.int64)  # rows of the batch that `read` would draft for
        self._resting = False

    def attach(self, runner: "Runner") -> None:
        """See EngineModel."""
        if self._runner is runner:
            return
        self._runner, self._passes = runner, runner.head_passes()

    def keep(self, scheduled: Any, resumed: Collection[str], policy_pass: "PolicyPass") -> None:
        """Keep the hidden states of the pass of the policy that just ended. Called after every pass. See HeadPasses."""
        if self._resting:
            self._passes.skip()
        else:
            self._passes.keep(scheduled, resumed, policy_pass)

    def rest(self, resting: bool) -> None:
        """Stop or restart keeping hidden states. See HeadModel."""
        self._resting = resting

    def forget(self, request: str) -> None:
        """See HeadModel."""
        self._passes.forget(request)

    def able(self, requests: Sequence[str]) -> np.ndarray | None:
        """See HeadModel."""
        return self._passes.able(requests)

    def num_unread(self, requests: Sequence[str], among: np.ndarray) -> int:
        """See HeadModel."""
        self._drafting = self._rows(requests)
        return self._passes.num_unread(self._drafting, among)

    @torch.inference_mode()
    def read(self, among: np.ndarray) -> Drawn:
        """See HeadModel."""
        self.sampler.begin(self._runner, self._drafting)
        return self._drawn(self._passes.model, self._passes.read(self._drafting, among), among)

    @torch.inference_mode()
    def go_on(self, among: np.ndarray, tokens: np.ndarray) -> Drawn:
        """See HeadModel."""
        return self._drawn(self._passes.model, self._passes.go_on(among, tokens), among)
