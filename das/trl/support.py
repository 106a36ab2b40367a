"""Check whether das refuses a kind of training, and say why. `run.py` checks before it builds anything; in scripts, das
checks when a trainer is built."""

import os
from typing import Any

from das.general import ranks

# From this compute capability on, batch-invariant kernels leave the trainer its matrix products. They still replace its
# batched products, softmax, log_softmax and means, whose backward passes remain torch's.
HOPPER = 90
QUANTIZED = "das cannot sync quantized weights into the engine: load the model without quantization"


def unsupported(model: Any = None, accelerator: Any = None) -> str:
    """Returns one line that says why das cannot train in this process; empty if it can.

    model: the policy, as loaded. accelerator: accelerate's Accelerator, which knows what the launcher or the trainer's
    arguments asked for. If it is None, because it is not built yet, the launcher's environment variables are read.
    """
    state = getattr(accelerator, "state", None)
    if _fsdp_version(state) == 1:
        return "FSDP 1 shards models in a way that das's weight check does not know: use FSDP 2 (launch/fsdp.yaml)"
    if (
        model is not None
        and ranks.fsdp_on_cpu()
        and not getattr(model, "is_distributed_loading_by_transformers", False)
    ):
        return (
            "accelerate has no FSDP on a CPU and would train with DDP without a word: load the policy with "
            f'model_init_kwargs={{"distributed_config": {{"fsdp_size": {ranks.count()}}}}} (run.py does where '
            "ACCELERATE_USE_FSDP=true and FSDP_VERSION=2 are set before it is launched), or go without FSDP"
        )
    if state is not None and ranks.is_set("ACCELERATE_USE_DEEPSPEED") and state.deepspeed_plugin is None:
        return (
            "accelerate has no DeepSpeed with use_cpu=True and would train with DDP without a word: leave use_cpu out"
        )
    if getattr(state, "num_processes", ranks.count()) != ranks.count():
        return (
            f"accelerate counts 1 process of {ranks.count()}, because on a CPU transformers drops ddp_backend where "
            "the trainer's arguments have `deepspeed`: leave that out, and launch with ACCELERATE_USE_DEEPSPEED=true, "
            'ACCELERATE_DEEPSPEED_CONFIG_FILE=FILE and ddp_backend="gloo"'
        )
    if getattr(model, "quantization_method", None) is not None:
        return QUANTIZED
    return ""


def invariance_problem(capability: int | None, invariant: bool) -> str:
    """Returns one line that says why batch-invariant kernels would break this process's training; empty if they do not.

    capability: compute capability of the GPU, such as 86; None: no GPU. invariant: whether these kernels of vLLM are
    on.
    """
    if not invariant or capability is None or capability >= HOPPER:
        return ""
    return (
        f"on a GPU of compute capability {capability / 10:.1f} vLLM's batch-invariant kernels replace torch's matrix "
        "products in the whole process, and have no backward pass: set engine.exact=distribution (in a script "
        'das.speculate(exact="distribution")) or train with vllm_mode="server"'
    )


def _fsdp_version(state: Any) -> int | None:
    """Returns the version of FSDP in use, 1 or 2; None without FSDP. state: the accelerator's state, or None."""
    if state is None:
        return int(os.environ.get("FSDP_VERSION", "1")) if ranks.asks_for_fsdp() else None
    return getattr(getattr(state, "fsdp_plugin", None), "fsdp_version", None)
