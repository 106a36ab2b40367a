"""Save and load EAGLE-3 heads. vLLM loads the same files."""

import json
from dataclasses import replace
from pathlib import Path

from safetensors.torch import load_file, save_file

from das.general.files import write_text
from das.models.head_files import CONFIG, WEIGHTS, aux_layers_of, read_head
from experiments.heads.eagle3 import Eagle3Head, shape_for


def save_head(head: Eagle3Head, folder: Path, tokenizer: str | None) -> None:
    """Write the head in the form that vLLM loads: config.json and model.safetensors.

    tokenizer: digest of the policy's tokenizer (head_files.tokenizer_digest). With it, das refuses the head for a
    policy with another tokenizer.
    """
    shape = head.shape
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": shape.vocabulary,
        "draft_vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.max_positions,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(shape.aux_layers),
            "use_aux_hidden_state": True,
        },
        "das_tokenizer": tokenizer,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, json.dumps(config, indent=1))
    weights = {name: value.detach().contiguous() for name, value in head.named_parameters()}
    save_file(weights, folder / WEIGHTS, {"format": "pt"})


def load_head(folder: Path) -> Eagle3Head:
    """Load a head that `save_head` wrote. Raises ValueError with a one-line message if the files have another form."""
    config = read_head(folder)
    head = Eagle3Head(replace(shape_for(config), aux_layers=aux_layers_of(config)))
    weights = load_file(folder / WEIGHTS)
    if odd := head.misfit(weights):
        raise ValueError(f"head {folder}: {WEIGHTS} does not fit its {CONFIG} ({odd}): das trains its own heads only")
    head.load_state_dict(weights)
    return head
