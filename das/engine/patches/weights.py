"""Make it possible to load new weights into a running engine, and let the engine notice it.

- model.load_weights: it is hooked, because nothing else tells an engine that its weights are new. The hook also gives
  weights the names that vLLM's model knows, where transformers has others.
- WeightTransferEngineFactory gets one more backend, for engines that name it, because vLLM's own need CUDA.
- dispatch_cpu_unquantized_gemm, replaced only while weights are loaded, and quant_method.process_weights_after_loading
  of each linear layer (CPU): vLLM packs the weights and drops the originals, so a load of new weights crashes or leaves
  stale ones. Also, a single row of a wide layer gets other bits than a row among several (cpu.py).
- CPUUnquantizedExperts.process_weights_after_loading, replaced only while weights are loaded, and `apply` of each such
  object: vLLM puts packed weights of experts in the place of the plain ones, where a load would write plain ones.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from das.engine.patches.cpu import INPUTS, double_single_rows
from das.engine.patches.replace import patch, put, replaced

Tensors = Iterable[tuple[str, torch.Tensor]]  # by name
WEIGHT_TRANSFER = "das_gloo"  # the backend of das/weights/gloo_transfer.py
# By vLLM's class: parts of names in transformers 5, and what stands for them in names that vLLM knows.
NAMES = {
    "MixtralForCausalLM": {
        ".mlp.experts.gate_up_proj": ".block_sparse_moe.experts.w13",
        ".mlp.experts.down_proj": ".block_sparse_moe.experts.w2",
        ".mlp.gate.": ".block_sparse_moe.gate.",
    }
}


def hook_loading(model: Any, watch: Callable[[Tensors], Tensors]) -> None:
    """Let `watch` see the weights whenever some are loaded into the model, no matter by whom, and translate their
    names. watch: returns the weights."""
    names = NAMES.get(type(model).__name__, {})

    def load_weights(original: Callable[..., Any], weights: Tensors, *args: Any, **kwargs: Any) -> Any:
        weights = watch(weights)
        return original(_renamed(weights, names) if names else weights, *args, **kwargs)

    patch(model, "load_weights", load_weights)


def _renamed(weights: Tensors, names: Mapping[str, str]) -> Tensors:
    for name, tensor in weights:
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        yield name, tensor


def offer_weight_transfer(vllm_config: Any) -> None:
    """Register das's backend for weight transfer in vLLM, if the engine's settings name it."""
    config = vllm_config.weight_transfer_config
    if config is None or config.backend != WEIGHT_TRANSFER:
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if WEIGHT_TRANSFER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(WEIGHT_TRANSFER, "das.weights.gloo_transfer", "GlooWeightTransfer")


@contextmanager
def kept_weights(invariant: bool = False) -> Iterator[None]:
    """Inside the `with` block, linear layers and experts of the CPU keep their weights beside the packed ones, so that
    new weights can be loaded and packed.

    invariant: the layers give a single row the same bits as one of several rows; if False, they compute as in vLLM.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        yield
        return
    from vllm.model_executor.layers import utils as linear_utils
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    packed_linear = functools.partial(_packed_linear, _pack_invariant if invariant else _pack)
    with (
        replaced(linear_utils, "dispatch_cpu_unquantized_gemm", packed_linear),
        replaced(CPUUnquantizedExperts, "process_weights_after_loading", _packed_experts),
    ):
        yield


def _packed_linear(pack: Callable[..., None], original: Callable[..., Any], layer: Any, remove_weight: bool) -> None:
    put(layer, das_repack=functools.partial(pack, original, layer))
    layer.das_repack()
    # After loading weights, callers may let vLLM process them as at the start. It would pack them and drop them.
    put(layer.quant_method, process_weights_after_loading=lambda layer: layer.das_repack())


def _pack(original: Callable[..., Any], layer: Any) -> None:
    original(layer, remove_weight=False)


def _pack_invariant(original: Callable[..., Any], layer: Any) -> None:
    _pack(original, layer)
    if layer.weight.ndim == 2 and layer.weight.shape[1] > INPUTS:
        put(layer, cpu_linear=double_single_rows(layer.cpu_linear))


class PackedExperts:
    """The experts of one layer: the layer keeps plain weights, and this object the packed ones that compute.

    process: vLLM's function that puts packed weights in the place of the layer's plain ones.
    """

    def __init__(self, process: Callable[[Any, Any], None], experts: Any, layer: Any):
        self._process, self._experts, self._layer = process, experts, layer
        self._packed = self._pack()
        patch(experts, "apply", self._apply)

    def repack(self) -> None:
        """Pack the layer's current weights."""
        self._packed = self._pack()

    def stale(self) -> bool:
        """Returns whether the packed weights are not those of the layer."""
        return not all(map(torch.equal, self._packed, self._pack()))

    def _pack(self) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self._layer
        plain = layer.w13_weight, layer.w2_weight
        self._process(self._experts, layer)
        packed = layer.w13_weight.data, layer.w2_weight.data
        layer.w13_weight, layer.w2_weight = plain
        return packed

    def _apply(self, compute: Callable[..., None], **arguments: Any) -> None:
        """Compute with the packed weights in place of those that vLLM passes, which are the layer's."""
        w1, w2 = self._packed
        compute(**arguments | {"w1": w1, "w2": w2})


def _packed_experts(process: Callable[[Any, Any], None], experts: Any, layer: Any) -> None:
    packed = PackedExperts(process, experts, layer)
    put(layer, das_experts=packed, das_repack=packed.repack)
    put(experts, process_weights_after_loading=lambda layer: layer.das_repack())  # as for linear layers


def repack_linear_layers(model: torch.nn.Module) -> None:
    """Pack the current weights of all linear layers and experts again. The CPU needs this after every load_weights."""
    for module in model.modules():
        repack: Any = getattr(module, "das_repack", None)
        if repack is not None:
            repack()
