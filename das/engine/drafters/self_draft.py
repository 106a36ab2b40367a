"""Self-drafts: the policy drafts for itself, with its weights quantized. They are quantized again when they change.

This is the drafter of EfficientRollout (arXiv 2606.18967, section 3), except that its tokens are drawn with the
verifier's own noise (das/verify/coupled.py). It needs no training, and it reads the policy's KV cache instead of having
its own. It drafts alone (method self_draft), or it continues what the history of past responses drafts (method
das_self): see das/model_drafts/in_turns.py.
"""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from das.engine.drafters.quantized_layers import QuantizedLayers
from das.engine.versions import NotInstalled
from das.model_drafts.in_turns import Drawn
from das.verify.coupled import CoupledSampler

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner


logger = logging.getLogger("das")
BROKEN = "the self-draft computed values that are not finite; it drafts nothing until new weights come"


class SelfDraft:
    """The policy with quantized layers. It implements das.model_drafts.in_turns.ChainModel.

    weights: the format of the drafting weights, one of das.engine.drafters.quantized.FORMATS
    """

    def __init__(self, weights: str):
        self.weights = weights
        self.sampler = CoupledSampler()
        self._runner = cast("Runner", None)  # until `attach`
        self._broken: int | None = None  # version of the policy's weights with which values were not finite
        self._alarms: list[str] = []
        self._passes: Any  # what Runner.draft_passes returned
        self._layers: QuantizedLayers
        self._last: dict[int, int] = {}  # the last token of each request, until a draft pass has computed it

    def attach(self, runner: "Runner") -> None:
        """Connect to the model runner whose requests it drafts for. The runner's KV cache already exists.

        Called before every round of drafts.
        """
        if self._runner is runner:
            return
        layers: QuantizedLayers | None = runner.quantized
        if layers is None or layers.weights != self.weights:
            raise NotInstalled(
                f"this engine has no self-drafts in {self.weights}: build it for the method self_draft or das_self"
            )
        self._runner = runner
        self._layers = layers
        self._passes = runner.draft_passes(int(runner.vllm.vllm_config.speculative_config.num_speculative_tokens))

    def clock(self) -> float:
        """See ChainModel."""
        return time.perf_counter()

    @torch.inference_mode()
    def prepare(self, requests: Sequence[str]) -> float | None:
        """See ChainModel. Quantizes the policy's weights if they have changed since they were quantized last."""
        version: int = self._runner.weights_version
        if self._broken == version:
            return None
        if self._layers.version == version:
            return 0.0
        start = time.perf_counter()
        self._layers.make(version)
        return time.perf_counter() - start

    def observe(self, requests: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """See ChainModel."""
        self.sampler.observe(requests, tokens)

    def alarms(self) -> list[str]:
        """Returns the alarms since the last call, one line each."""
        alarms, self._alarms = self._alarms, []
        return alarms

    def begin(self, requests: Sequence[str]) -> None:
        """See ChainModel."""
        batch, known = self._runner.input_batch, self._runner.requests
        rows = np.array([batch.req_id_to_index[name] for name in requests], np.int64)
        self._passes.begin(rows)
        self.sampler.begin(self._runner, rows)
        self._last = {i: known[name].output_token_ids[-1] for i, name in enumerate(requests)}

    @torch.inference_mode()
    def run(self, among: np.ndarray, tokens: Sequence[Sequence[int]]) -> Drawn:
        """See ChainModel."""
        inputs = []
        for i, own in zip(among.tolist(), tokens, strict=True):
            if i in self._last:
                inputs.append([self._last.pop(i), *own])
                self.sampler.follow(i, own)
            else:
                inputs.append([*own])
                self.sampler.follow(i, own[1:])  # own[0] is the token that the model itself drew last
        with self._layers.used():
            hidden = self._passes.run(among, inputs)
        if not bool(torch.isfinite(hidden).all()):
            self._broken = self._runner.weights_version
            self._alarms.append(BROKEN)
            logger.error("speculation: %s", BROKEN)
            self._passes.forget()
            return None
        return self.sampler.draw(self._runner.vllm.model.compute_logits(hidden).float(), among)
