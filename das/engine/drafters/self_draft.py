"""Self-drafts: the policy's own weights, quantized anew whenever they change, draft for the policy.

EfficientRollout's drafter (arXiv 2606.18967, section 3), with tokens drawn by the verifier's own noise
(das/engine/coupled.py). It needs no training and no KV cache of its own: it reads the policy's. It drafts alone, or
behind what the history drafts (arm das_self).
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from das.drafter import Drafts, HistoryDrafter
from das.drafter.chains import Chains
from das.engine.drafters.draft_passes import DraftPasses
from das.engine.drafters.model_drafter import ModelDrafter
from das.engine.drafters.quantized_layers import QuantizedLayers
from das.engine.versions import NotInstalled

logger = logging.getLogger("vllm.das")
BROKEN = "the self-draft computed values that are not finite; it drafts nothing until new weights come"


class SelfDrafter(ModelDrafter):
    """Drafts chains for the requests of one engine.

    weights                 the format of the drafting weights: one of das.engine.drafters.quantized.FORMATS
    passes, worth, history  as ModelDrafter has them; the history drafts first, where it is sure enough

    A depth of drafts is computed for all requests at once, as long as its tokens are expected to save more time than
    the pass takes.
    """

    def __init__(
        self, weights: str, passes: int | None, worth: Callable[[], float], history: HistoryDrafter | None = None
    ):
        super().__init__(passes, worth, history)
        self.weights = weights
        self._passes: DraftPasses
        self._layers: QuantizedLayers
        self._broken: int | None = None  # the version whose layers compute values that are not finite

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """As ModelDrafter has it."""
        self._passes_made, self._requantize_s = [], 0.0
        chains = Chains(limits, floors)
        every = np.arange(len(requests))
        if self.history is not None:
            chains.take(every, self.history.propose_batch(requests, limits, floors))
        if self._broken != self._runner.das_weights_version:
            self._draft(requests, chains)
            if self._broken is not None and self._broken == self._layers.version:  # it broke just now
                chains.drop()
                if self.history is not None:
                    chains.take(every, self.history.propose_batch(requests, limits, floors))
        return chains.drafts()

    def attach(self, runner: Any) -> None:
        """As ModelDrafter has it."""
        if self._runner is runner:
            return
        layers: QuantizedLayers | None = runner.das_quantized
        if layers is None or layers.weights != self.weights:
            raise NotInstalled(
                f"this engine has no self-drafts in {self.weights}: build it for the method self_draft or das_self"
            )
        self._runner = runner
        self._layers = layers
        longest = int(runner.vllm_config.speculative_config.num_speculative_tokens)
        self._passes = DraftPasses(runner, runner.das_draft_blocks, longest)

    @torch.inference_mode()
    def _draft(self, requests: Sequence[str], chains: Chains) -> None:
        """Let the model and the history lengthen the chains in turn."""
        runner = self._runner
        self._requantize()
        batch = runner.input_batch
        rows = np.array([batch.req_id_to_index[name] for name in requests], np.int64)
        last = batch.token_ids_cpu[rows, batch.num_tokens_no_spec[rows] - 1].tolist()
        sure, _, _ = chains.behind(np.arange(len(requests)))
        pending = [[token, *own] for token, own in zip(last, sure, strict=True)]  # what the next pass must compute
        begun = False
        while True:
            among, gain = chains.open(self._usual)
            if not len(among) or len(self._passes_made) == self.most_passes:
                return
            num_rows = sum(len(pending[i]) for i in among.tolist())
            if not self._pays(gain, self.price.seconds(num_rows)):
                return
            start = time.perf_counter()
            if not begun:
                self._passes.begin(rows)
                self.sampler.begin(runner, rows)
                for i, own in enumerate(sure):
                    self.sampler.follow(i, own)
                begun = True
            with self._layers.used():
                hidden = self._passes.run(among, [pending[i] for i in among.tolist()])
            if not bool(torch.isfinite(hidden).all()):
                self._give_up()
                return
            drawn, likely = self.sampler.draw(runner.model.compute_logits(hidden).float(), among)
            chains.append(among, drawn, likely)
            for i, token in zip(among.tolist(), drawn.tolist(), strict=True):
                pending[i] = [token]
            if self.history is not None:
                self._ask_history(requests, chains, among, pending)
            self._note_pass(num_rows, time.perf_counter() - start, likely)

    def _ask_history(
        self, requests: Sequence[str], chains: Chains, among: np.ndarray, pending: list[list[int]]
    ) -> None:
        """Let the history lengthen these chains behind what the model drafted."""
        assert self.history is not None
        tokens, room, floors = chains.behind(among)
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        for i, taken in zip(among.tolist(), chains.take(among, drafts), strict=True):
            self.sampler.follow(i, taken)
            pending[i] += taken

    def _requantize(self) -> None:
        """Quantize the policy's weights if they are not those that were quantized last."""
        version: int = self._runner.das_weights_version
        if self._layers.version == version:
            return
        start = time.perf_counter()
        self._layers.make(version)
        self._requantize_s = time.perf_counter() - start
        self._runner.das_meter.requantize_s += self._requantize_s

    def _give_up(self) -> None:
        """The drafting weights are broken: draft with them no more."""
        self._broken = self._layers.version
        self._alarms.append(BROKEN)
        logger.error("speculation: %s", BROKEN)
        self._passes.forget()
