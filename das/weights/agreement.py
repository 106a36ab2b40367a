"""Check, when a trainer is built, that it and its engine compute the same from the weights that they will share."""

from dataclasses import dataclass
from typing import Any

CURE = 'train it whole in both places: LoraConfig(modules_to_save=["embed_tokens"], ensure_weight_tying=True)'
OWN_HEAD = (
    "the trainer's lm_head is its input embedding, and the engine has one of its own, which would stay as it is: save "
    "the policy with tie_word_embeddings=true in its config"
)


@dataclass(frozen=True)
class Policy:
    """What an engine knows of its policy. dtype: in which it computes, such as "float32". tied: whether its lm_head is
    its input embedding. room: the most tokens of a prompt and its response together. keeps_bits: whether drafts change
    no token, or keep the distribution alone."""

    dtype: str
    tied: bool
    room: int
    keeps_bits: bool


def policy_of(model_config: Any, keeps_bits: bool) -> Policy:
    """Returns what this ModelConfig of vLLM says."""
    tied = bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))
    return Policy(str(model_config.dtype).removeprefix("torch."), tied, int(model_config.max_model_len), keeps_bits)


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
