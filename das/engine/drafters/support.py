"""Check whether self-drafts work in an engine. If not, a one-line error says what to change."""

from collections.abc import Mapping
from typing import Any

import torch

from das.engine.drafters.quantized import FORMATS
from das.engine.versions import NotInstalled

LAST_WITH_INT8 = 99  # ten times the last compute capability with vLLM's int8 kernels; Blackwell (10.0) has none


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ValueError with a one-line message unless these are valid options of self-drafts: `weights` and
    `passes`."""
    if set(options) != {"weights", "passes"} or options["weights"] not in FORMATS:
        raise ValueError(f"self_draft={dict(options)}: give weights, one of {', '.join(FORMATS)}, and passes")
    passes = options["passes"]
    if passes is not None and (type(passes) is not int or passes < 1):
        raise ValueError(f"self_draft.passes={passes!r}: must be 1 or more, or null for any number")


def require_self_draft(vllm_config: Any, own: Mapping[str, Any]) -> None:
    """Raise NotInstalled with a one-line message if self-drafts do not work with this configuration. own: the
    self-drafts' options."""
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    _require_plain("self-drafts", vllm_config)
    if vllm_config.model_config.is_moe:
        raise NotInstalled("self-drafts: experts cannot be quantized yet; choose another method, such as das")
    dtype = vllm_config.model_config.dtype
    if current_platform.is_cpu():
        if not _custom_ops._supports_onednn:
            raise NotInstalled("self-drafts need a vLLM that was built with oneDNN: choose another method, such as das")
    elif dtype not in (torch.bfloat16, torch.float16):
        raise NotInstalled(f"self-drafts: vLLM's kernels for quantized weights take no {dtype}; set dtype=bfloat16")
    elif own["weights"] == "w8a8" and current_platform.has_device_capability(LAST_WITH_INT8 + 1):
        raise NotInstalled("self_draft.weights=w8a8: vLLM has no int8 kernel for this GPU; choose w4")
    if vllm_config.model_config.quantization is not None:
        raise NotInstalled("self-drafts need a policy that is not quantized itself: choose another method, such as das")


def _require_plain(what: str, vllm_config: Any) -> None:
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size > 1 or parallel.data_parallel_size > 1:
        raise NotInstalled(f"{what}: one rank only; set tensor_parallel_size=1 and data_parallel_size=1")
    if vllm_config.kv_transfer_config is not None:
        raise NotInstalled(f"{what}: not with KV transfer; choose another method, such as das")
    if vllm_config.model_config.uses_mrope or vllm_config.lora_config is not None:
        raise NotInstalled(f"{what}: not with multimodal positions or LoRA adapters")
