"""A stand-in of each architecture of CHECKED, with random weights, without and with drafts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from das.engine.checked_policies import CHECKED
from das.engine.self_test import VOCABULARY, compare

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
WINDOW = {"sliding_window": 24}
TYPES = ["sliding_attention", "full_attention"]
EXPERTS = {"num_experts_per_tok": 2}
STAND_INS: dict[str, PretrainedConfig] = {
    "Gemma3ForCausalLM": Gemma3TextConfig(
        **SIZES, **WINDOW, layer_types=TYPES, query_pre_attn_scalar=32, tie_word_embeddings=False
    ),  # tied, it repeats one token, and all drafts are right
    "GptOssForCausalLM": GptOssConfig(**SIZES, **WINDOW, **EXPERTS, num_local_experts=4, layer_types=TYPES),
    "LlamaForCausalLM": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "MistralForCausalLM": MistralConfig(**SIZES, **WINDOW),
    "Qwen2ForCausalLM": Qwen2Config(**{name: value for name, value in SIZES.items() if name != "head_dim"}),
    "Qwen3ForCausalLM": Qwen3Config(**SIZES),
    "Qwen3MoeForCausalLM": Qwen3MoeConfig(**SIZES, **EXPERTS, num_experts=4, moe_intermediate_size=64),
}


def test_each_checked_architecture_has_a_stand_in() -> None:
    assert set(STAND_INS) == CHECKED


@pytest.mark.slow
@pytest.mark.parametrize("name", STAND_INS)
def test_drafts_change_no_token_and_no_logprob(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(STAND_INS[name], dtype=torch.float32)
    for part, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0.0, 0.15)
        elif part.endswith(("bias", "sinks")):
            parameter.data.normal_(0.0, 0.3)
    model.save_pretrained(tmp_path)
    found = compare(tmp_path, {"model": str(tmp_path), "dtype": "float32", "gpu_memory_utilization": 0.1})
    assert found["differing_requests"] == 0
    assert found["drafted"] > found["accepted"] > 0
