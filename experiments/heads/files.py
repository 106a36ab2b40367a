"""The files of draft heads: EAGLE-3 heads, which vLLM loads too, and the MTP layers (multi-token prediction) of
policies like MiMo.

transformers has no class for a policy like MiMo. It loads and trains the policy as a Qwen2, and saves it as a Qwen2
without the layers. So the layers have a file of their own beside the policy's weights, and `put_back` completes a
folder that transformers saved.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import safe_open
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
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(shape.aux_layers), "use_aux_hidden_state": True},
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


# ---- MTP layers ----

MTP_WEIGHTS = "mtp.safetensors"
LAYERS = "model.mtp_layers."  # the names of all weights of MTP layers begin with this
ARCHITECTURE = "MiMoForCausalLM"
Tensors = list[tuple[str, torch.Tensor]]


def is_mimo(policy: Path) -> bool:
    """Returns whether a folder holds a policy like MiMo, whose MTP layers transformers leaves out."""
    file = policy / CONFIG
    return file.is_file() and json.loads(file.read_text()).get("architectures") == [ARCHITECTURE]


def mtp_tensors(policy: Path) -> Tensors:
    """Returns the weights of the MTP layers in a policy's folder, under the names of its files."""
    found: Tensors = []
    for file in sorted(policy.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            names = [name for name in weights.keys() if name.startswith(LAYERS)]  # noqa: SIM118  it is no dict
            found += [(name, weights.get_tensor(name)) for name in names]
    return found


def put_back(saved: Path, tensors: Tensors) -> None:
    """Add the MTP layers to a folder in which transformers saved the policy without them, so that vLLM can draft with
    them.

    saved: a folder with the config.json and model.safetensors of a Qwen2. transformers can still load it afterwards.
    tensors: the layers' weights, under the names of MiMo's files.
    """
    layers = {name.removeprefix(LAYERS).split(".")[0] for name, _ in tensors}
    config = json.loads((saved / CONFIG).read_text())
    config |= {"architectures": [ARCHITECTURE], "num_nextn_predict_layers": len(layers)}
    write_text(saved / CONFIG, json.dumps(config, indent=1))
    save_file({name: value.contiguous() for name, value in tensors}, saved / MTP_WEIGHTS, {"format": "pt"})
