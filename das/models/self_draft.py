"""Self-drafts: the policy drafts for itself, with its weights quantized. They are quantized again when they change.

This is the drafter of EfficientRollout (arXiv 2606.18967, section 3), except that its tokens are drawn with the
verifier's own noise (das/models/coupled.py). It needs no training, and it reads the policy's KV cache instead of having
its own. A pass of the quantized weights drafts one token for every request that may have one more.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from das.budget import DraftWork
from das.drafter import Draft, Drafter, Drafts
from das.general.errors import NotInstalled
from das.models.coupled import OF_MODELS, CoupledSampler
from das.models.draft_passes import DraftPasses
from das.models.quantized import Linear, has_8_bit_products, linear_maker, require_shape

logger = logging.getLogger("das")
BROKEN = "the self-draft computed values that are not finite; it drafts nothing until new weights come"
SLOW = (
    "self_draft=w8a8: this processor has no instruction for products of 8 bits, so drafts of few requests cost more "
    "than passes; choose w4"
)


class SelfDraft(Drafter):
    """The policy with quantized layers. It learns nothing of requests, drafts as many tokens as it is asked for, and
    does not say how probable they are.

    weights: the format of the drafting weights, one of FORMATS. passes_of: makes what self-drafts in a format run on
    """

    def __init__(self, weights: str, passes_of: Callable[[str], tuple[DraftPasses, "QuantizedLayers"]]):
        self.weights = weights
        self.sampler = CoupledSampler(OF_MODELS)
        self.requests: Sequence[Any] = ()  # of the next round, in its order; the proposer sets them
        self._passes_of = passes_of
        self._passes: DraftPasses | None = None  # made in the first round, when the KV cache exists
        self._layers: QuantizedLayers
        self._broken: int | None = None  # version of the policy's weights with which values were not finite
        self._alarms = [SLOW] if weights == "w8a8" and not has_8_bit_products() else []
        self._work = DraftWork()

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        """Do nothing."""

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Do nothing."""

    def end(self, request: str, keep: bool = True) -> None:
        """Do nothing."""

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """See propose_batch."""
        drafts = self.propose_batch(requests, limits, floors)
        return [drafts[row] for row in range(len(drafts))]

    @torch.inference_mode()
    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Draft limits[i] tokens for request i, or none as long as the present weights computed values that are not
        finite. Floors do not matter, and the stated probabilities are all 1."""
        if self._passes is None:
            self._passes, self._layers = self._passes_of(self.weights)
        passes, layers = self._passes, self._layers
        most = np.asarray(limits, np.int64)
        tokens = np.zeros((len(most), most.max()), np.int32)
        nothing = Drafts(tokens, np.ones(tokens.shape), np.zeros(len(most), np.int64))
        if self._broken == layers.newest:
            return nothing
        took: list[tuple[int, float]] = []
        self._work = DraftWork(took, layers.update())
        before = time.perf_counter()
        self.sampler.begin(passes.begin(self.requests), passes.processed)
        newest = np.array([request.output_token_ids[-1] for request in self.requests], np.int64)  # computed by no pass
        for depth in range(most.max()):
            among = np.flatnonzero(most > depth)
            with layers.used():
                hidden = passes.run(among, newest[among])
            if not bool(torch.isfinite(hidden).all()):
                self._break(passes)
                return nothing
            tokens[among, depth] = newest[among] = self.sampler.draw(passes.logits(hidden), among).cpu().numpy()
            before, began = time.perf_counter(), before
            took.append((len(among), before - began))
        return Drafts(tokens, nothing.probs, most)

    def handed_out(self) -> DraftWork:
        """Returns the work of the last round of drafts. Further calls return no work until the next round."""
        work, self._work = self._work, DraftWork()
        return work

    def alarms(self) -> list[str]:
        """Returns the alarms since the last call, one line each."""
        alarms, self._alarms = self._alarms, []
        return alarms

    def _break(self, passes: DraftPasses) -> None:
        """Draft nothing until new weights come."""
        self._broken = self._layers.newest
        self._alarms.append(BROKEN)
        logger.error("speculation: %s", BROKEN)
        passes.forget()


@dataclass(frozen=True)
class _Method:
    """Takes the place of a layer's quant_method: computes with the quantized weights."""

    linear: Linear

    def apply(self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(x, bias)


class QuantizedLayers:
    """The linear layers of a model, which compute with quantized weights inside `used()`. One object for an engine.

    model: vLLM's; its layers must keep their weights (on the CPU by kept_weights in das/engine/patches/weights.py).
    Layers that are no plain linear layers, such as experts, stay as they are.
    weights: one of FORMATS.
    """

    def __init__(self, model: torch.nn.Module, weights: str):
        from vllm.model_executor.layers.linear import LinearBase
        from vllm.platforms import current_platform

        self.weights = weights
        self.newest = 0  # version of the policy's weights; it grows with every sync
        self.version: int | None = None  # the one that was quantized last
        self._make = linear_maker(weights)
        self._layers: list[Any] = [layer for layer in model.modules() if isinstance(layer, LinearBase)]
        if current_platform.is_cpu():
            for layer in self._layers:
                require_shape(weights, layer.weight)
        self._drafting: list[_Method] = []

    def update(self) -> float:
        """Quantize the policy's weights if they have changed since they were quantized last. Returns the seconds."""
        if self.version == self.newest:
            return 0.0
        start = time.perf_counter()
        self.make()
        return time.perf_counter() - start

    def make(self) -> None:
        """Quantize the policy's weights as they are now. Raises NotInstalled if no kernel can multiply them."""
        self.forget()  # first, so that old and new quantized weights are not in memory together
        for layer in self._layers:
            self._drafting.append(_Method(self._make(layer.weight.data)))
        self.version = self.newest

    def forget(self) -> None:
        """Free the memory of the quantized weights."""
        self._drafting.clear()
        self.version = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Inside the `with` block, the model computes with the quantized weights."""
        own = [layer.quant_method for layer in self._layers]
        try:
            for layer, method in zip(self._layers, self._drafting, strict=True):
                layer.quant_method = method
            yield
        finally:
            for layer, method in zip(self._layers, own, strict=True):
                layer.quant_method = method


def require_self_draft(vllm_config: Any, weights: str) -> None:
    """Raise NotInstalled with a one-line message if self-drafts do not work with this configuration. weights: the
    format of the drafting weights."""
    from vllm.platforms import current_platform

    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    if parallel.tensor_parallel_size > 1 or parallel.data_parallel_size > 1:
        raise NotInstalled("self-drafts: one rank only; set tensor_parallel_size=1 and data_parallel_size=1")
    if vllm_config.kv_transfer_config is not None:
        raise NotInstalled("self-drafts: not with KV transfer; choose another method, such as das")
    if model.uses_mrope or vllm_config.lora_config is not None:
        raise NotInstalled("self-drafts: not with multimodal positions or LoRA adapters")
    if model.is_moe:
        raise NotInstalled("self-drafts: experts cannot be quantized yet; choose another method, such as das")
    on_cpu = current_platform.is_cpu()
    if not on_cpu and model.dtype not in (torch.bfloat16, torch.float16):
        raise NotInstalled(
            f"self-drafts: vLLM's kernels for quantized weights take no {model.dtype}; set dtype=bfloat16"
        )
    if not on_cpu and weights != "w4":
        raise NotInstalled(f"self_draft={weights}: on a CPU only; choose w4")
    if model.quantization is not None:
        raise NotInstalled("self-drafts need a policy that is not quantized itself: choose another method, such as das")
