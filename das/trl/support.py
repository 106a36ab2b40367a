"""Check whether das refuses a kind of training, and say why: one that das does not support, or one whose trainer and
engine would compute other things from the same weights. `run.py` checks before it builds anything; in scripts, das
checks when a trainer is built."""

import os
from typing import Any

from das.engine.checked_policies import Policy
from das.general import ranks

# From this compute capability on, batch-invariant kernels leave the trainer its matrix products. They still replace its
# batched products, softmax, log_softmax and means, whose backward passes remain torch's.
HOPPER = 90
CURE = 'train it whole in both places: LoraConfig(modules_to_save=["embed_tokens"], ensure_weight_tying=True)'
OWN_HEAD = (
    "the trainer's lm_head is its input embedding, and the engine has one of its own, which would stay as it is: save "
    "the policy with tie_word_embeddings=true in its config"
)
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


def embedding_problem(model: Any, policy: Policy) -> str:
    """Returns one line that says why the engine's embedding or lm_head would soon differ from the trainer's; empty if
    neither would.

    model: the trainer's, of transformers or PEFT. policy: the engine's. An engine with tied weights computes both from
    the embedding that TRL loads. In the trainer PEFT may train one of the two alone; and it merges an adapter of tied
    weights into them twice.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or head is None:
        return ""
    if hasattr(embedding, "token_adapter"):
        return f"TRL does not load PEFT's trainable_token_indices into an engine: {CURE}"
    of_embedding, of_head = ({id(each): each for each in module.parameters()} for module in (embedding, head))
    shared = of_embedding.keys() == of_head.keys()
    if not policy.tied:
        return OWN_HEAD if shared else ""
    trained = [each for each in of_head.values() if each.requires_grad]
    if shared and all(_size(each) == _size(embedding.weight) for each in trained):
        return ""
    return f"the engine's lm_head is its input embedding, and the trainer's would differ from it in training: {CURE}"


def _size(tensor: Any) -> tuple[int, ...]:
    return tuple(getattr(tensor, "ds_shape", tensor.shape))  # ZeRO-3 keeps the shape of a tensor that it has sharded


def dtype_note(autocast: str, policy: Policy) -> str:
    """Returns one line that says that trainer and engine round differently; empty if they do not.

    autocast: accelerate's mixed_precision: "no", "bf16" or "fp16". policy: the engine's.
    """
    trained = {"bf16": "bfloat16", "fp16": "float16"}.get(autocast, "")
    if trained in ("", policy.dtype):
        return ""
    return (
        f"the trainer computes in {trained} ({autocast}=True) and the engine in {policy.dtype}, so their log-probs "
        f'differ by rounding: set {autocast}=False, or das.speculate(engine={{"dtype": "{trained}"}})'
    )


def _fsdp_version(state: Any) -> int | None:
    """Returns the version of FSDP in use, 1 or 2; None without FSDP. state: the accelerator's state, or None."""
    if state is None:
        return int(os.environ.get("FSDP_VERSION", "1")) if ranks.asks_for_fsdp() else None
    return getattr(getattr(state, "fsdp_plugin", None), "fsdp_version", None)
