"""What das cannot train with: one answer, for `run.py` before anything is built and for the trainers of a script."""

import os
from typing import Any

DEEPSPEED = "DeepSpeed keeps weights where das cannot compare them: launch with FSDP 2 (launch/fsdp.yaml)"
FSDP_1 = "FSDP 1 unwraps no model for the weight check: set fsdp_version to 2 (launch/fsdp.yaml)"
QUANTIZED = "das cannot sync quantized weights into the engine: load the model without quantization"


def unsupported_launch() -> str:
    """Say why das cannot train in processes that were launched like this one, or nothing."""
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return _unsupported(deepspeed, int(os.environ.get("FSDP_VERSION", "1")) if fsdp else None)


def unsupported_policy(model: Any, accelerator: Any) -> str:
    """Say why das cannot train this model, prepared by this accelerator, or nothing."""
    fsdp_plugin = getattr(accelerator.state, "fsdp_plugin", None)
    deepspeed = accelerator.state.deepspeed_plugin is not None
    sharding = _unsupported(deepspeed, None if fsdp_plugin is None else fsdp_plugin.fsdp_version)
    return sharding or (QUANTIZED if getattr(model, "quantization_method", None) is not None else "")


def _unsupported(deepspeed: bool, fsdp_version: int | None) -> str:
    if deepspeed:
        return DEEPSPEED
    return FSDP_1 if fsdp_version == 1 else ""
