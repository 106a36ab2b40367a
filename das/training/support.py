"""What das cannot train with: one answer, for `run.py` before anything is built and for the trainers of a script."""

import os
from typing import Any

QUANTIZED = "das cannot sync quantized weights into the engine: load the model without quantization"


def unsupported(model: Any = None, accelerator: Any = None) -> str:
    """Say in one line why das cannot train in this process, or nothing.

    model: the policy, as loaded. accelerator: accelerate's, which knows what the launcher or the trainer's arguments
    asked for. Where it is not built yet, the launcher's environment variables are all there is.
    """
    state = getattr(accelerator, "state", None)
    if _is_set("ACCELERATE_USE_DEEPSPEED") or getattr(state, "deepspeed_plugin", None) is not None:
        return "DeepSpeed keeps weights where das cannot compare them: launch with FSDP 2 (launch/fsdp.yaml)"
    if _fsdp_version(state) == 1:
        return "FSDP 1 shards models in a way that das's weight check does not know: use FSDP 2 (launch/fsdp.yaml)"
    if getattr(model, "quantization_method", None) is not None:
        return QUANTIZED
    return ""


def _fsdp_version(state: Any) -> int | None:
    """1 or 2, or None without FSDP. state: the accelerator's, or None."""
    if state is None:
        return int(os.environ.get("FSDP_VERSION", "1")) if _is_set("ACCELERATE_USE_FSDP") else None
    return getattr(getattr(state, "fsdp_plugin", None), "fsdp_version", None)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "false").lower() == "true"
