"""Stand-ins of architectures, with random weights: `write` makes the folder of one."""

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

VOCABULARY = 512
IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"  # what stands for an image in a prompt
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": 3,
}
HEADS = {"head_dim": 32}
WINDOW = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 2}
NARROW = {"moe_intermediate_size": 64}
SEEING = {"image_token_id": 510, "video_token_id": 511, "vision_start_token_id": 508, "vision_end_token_id": 509}
EYES = {"depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": 128}
ROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10_000.0}}
# By vLLM's name of the architecture: the class of transformers, and the fields that differ from its defaults.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen2ForCausalLM": ("Qwen2Config", SIZES),
    "Qwen3ForCausalLM": ("Qwen3Config", SIZES | HEADS),
    "LlamaForCausalLM": ("LlamaConfig", SIZES | HEADS | {"tie_word_embeddings": True}),
    "MistralForCausalLM": ("MistralConfig", SIZES | HEADS | {"sliding_window": 24}),
    "Gemma3ForCausalLM": (
        "Gemma3TextConfig",  # tied, it repeats one token, and all drafts are right
        SIZES | HEADS | WINDOW | {"query_pre_attn_scalar": 32, "tie_word_embeddings": False},
    ),
    "Qwen3MoeForCausalLM": ("Qwen3MoeConfig", SIZES | HEADS | EXPERTS | NARROW | {"num_experts": 4}),
    "GptOssForCausalLM": ("GptOssConfig", SIZES | HEADS | WINDOW | EXPERTS | {"num_local_experts": 4}),
    "MixtralForCausalLM": ("MixtralConfig", SIZES | HEADS | EXPERTS | {"num_local_experts": 4, "sliding_window": None}),
    "SmolLM3ForCausalLM": ("SmolLM3Config", SIZES | {"no_rope_layer_interval": 2}),
    "Olmo2ForCausalLM": ("Olmo2Config", SIZES),
    "Phi3ForCausalLM": ("Phi3Config", SIZES | {"original_max_position_embeddings": 512}),
    "GraniteForCausalLM": ("GraniteConfig", SIZES),
    "Qwen2_5_VLForConditionalGeneration": (
        "Qwen2_5_VLConfig",
        {
            "text_config": SIZES | ROPE,
            "vision_config": EYES | {"fullatt_block_indexes": [0], "window_size": 56},
            **SEEING,
        },
    ),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", SIZES | HEADS | EXPERTS | NARROW | {"num_experts": 4}),
    "DeepseekV2ForCausalLM": (
        "DeepseekV2Config",
        SIZES | EXPERTS | NARROW | {"n_routed_experts": 4, "q_lora_rank": None, "num_key_value_heads": 4},
    ),
}


def config_of(name: str) -> PretrainedConfig:
    """The configuration of a stand-in. name: a key of CONFIGS."""
    kind, fields = CONFIGS[name]
    config: PretrainedConfig = getattr(transformers, kind)(**fields)
    config.architectures = [name]
    return config


def new_model(name: str) -> Any:
    """A stand-in with random weights, sharp enough that its texts repeat themselves."""
    config = config_of(name)
    kind = AutoModelForImageTextToText if sees(name) else AutoModelForCausalLM
    torch.manual_seed(0)
    model: Any = kind.from_config(config, dtype=torch.float32)
    for part, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0.0, 0.15)
        elif part.endswith(("bias", "sinks")):
            parameter.data.normal_(0.0, 0.3)
    return model


def sees(name: str) -> bool:
    """Whether the policy takes images."""
    return "vision_config" in CONFIGS[name][1]


def write(name: str, folder: Path) -> str:
    """Write a stand-in with a tokenizer of VOCABULARY tokens; one that sees, with a processor. Returns the folder."""
    from transformers import AddedToken

    from experiments.policies.train import train_tokenizer

    model = new_model(name)
    model.generation_config.eos_token_id = 3
    model.save_pretrained(folder)
    tokenizer = train_tokenizer(["what is 3 + 4?", "what is 12 - 5?", "the answer is so and so"], 400)
    special = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_tokens([AddedToken(f"<{n}>") for n in range(VOCABULARY - len(special) - len(tokenizer))])
    tokenizer.add_tokens([AddedToken(token, special=True) for token in special], special_tokens=True)
    tokenizer.save_pretrained(folder)
    if sees(name):
        _write_processor(tokenizer, folder)
    return str(folder)


def _write_processor(tokenizer: Any, folder: Path) -> None:
    tokenizer.chat_template = (
        "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}<|assistant|>{%- else -%}<|user|>{%- endif -%}"
        "{%- if m['content'] is string -%}{{ m['content'] }}{%- else -%}{%- for part in m['content'] -%}"
        "{%- if part['type'] == 'image' -%}" + IMAGE + "{%- else -%}{{ part['text'] }}{%- endif -%}"
        "{%- endfor -%}{%- endif -%}<|end|>{%- endfor -%}{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
    )
    patches = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    size = {"shortest_edge": 784, "longest_edge": 28 * 28 * 16}
    transformers.Qwen2_5_VLProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(**patches, size=size),
        video_processor=transformers.Qwen2VLVideoProcessor(**patches),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)
