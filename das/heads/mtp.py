"""A layer for multi-token prediction (MTP) of a Qwen2-shaped policy, like the layer of MiMo, in torch.

The layer reads the policy's last hidden state, before the last norm, and the embedding of the next token. It predicts
the token after that, with the policy's lm_head. For later tokens of a draft it reads its own last hidden state. vLLM
computes the same in vllm/model_executor/models/mimo_mtp.py; the names of the weights are those of MiMo's files.

transformers has no class for such a policy. It loads and trains the policy as a Qwen2, and saves it as a Qwen2 without
the layer. So the layer has a file of its own beside the policy's weights, and `put_back` completes a folder that
transformers saved.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from das.heads.on_disk import CONFIG
from das.heads.unrolled import Attended, HeadShape, UnrolledDrafter, gated_mlp, linears, shape_for

WEIGHTS = "mtp.safetensors"
LAYERS = "model.mtp_layers."  # the names of all weights of MTP layers begin with this
FIRST = LAYERS + "0."
ARCHITECTURE = "MiMoForCausalLM"
Tensors = list[tuple[str, torch.Tensor]]


class MtpLayer(UnrolledDrafter):
    """The layer. Its parameters have the names of MiMo's files, without FIRST. `new_mtp` and `load_mtp` fill them."""

    def lay_out(self, shape: HeadShape) -> None:
        """See UnrolledDrafter."""
        hidden, query, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        projections = {"q_proj": (hidden, query), "k_proj": (hidden, kv), "v_proj": (hidden, kv)}
        self.self_attn = linears(projections, bias=True)
        self.self_attn["o_proj"] = nn.Linear(query, hidden, bias=False)
        self.mlp = gated_mlp(shape)
        for norm in ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm"):
            setattr(self, norm, nn.RMSNorm(hidden, eps=shape.norm_eps))
        self.final_layernorm = nn.RMSNorm(hidden, eps=shape.norm_eps)

    def matrices(self) -> list[nn.Parameter]:
        """Returns all weight matrices. The vocabulary's matrices belong to the policy, not to the layer."""
        return [value for value in self.parameters() if value.ndim == 2]

    def unrolled(
        self, tokens: torch.Tensor, hidden: torch.Tensor, embedding: torch.Tensor, depth: int
    ) -> Iterator[torch.Tensor]:
        """See UnrolledDrafter. The embedding is also the lm_head: `load_mtp` refuses policies with another lm_head."""
        places = len(tokens) - 1
        state = hidden[:places]
        attended: Attended = []
        for step in range(min(depth, places)):
            positions = torch.arange(step, places, device=tokens.device)
            embeds = embedding[tokens[step + 1 :]].masked_fill(positions[:, None] == 0, 0.0)  # as vLLM does
            parts: Any = self
            read = [parts.hidden_layernorm(state[: places - step]), parts.token_layernorm(embeds)]
            state = self.input_proj(torch.cat(read, -1))
            state = self.decoded(self, state, parts.input_layernorm(state), positions, attended)
            state = self.final_layernorm(state)
            yield functional.linear(state, embedding)

    def tensors(self) -> Tensors:
        """Returns the weights, under the names of MiMo's files."""
        return [(FIRST + name, value.detach()) for name, value in self.named_parameters()]


def mtp_shape(config: dict[str, Any]) -> HeadShape:
    """Returns the shape of the MTP layer for a policy with this config.json."""
    return replace(shape_for(config), aux_layers=(config["num_hidden_layers"],))


def new_mtp(shape: HeadShape, norm: torch.Tensor, seed: int) -> MtpLayer:
    """Make a layer that has learned nothing. norm: weights of the policy's last norm; the layer's norm starts there."""
    layer = MtpLayer(shape)
    layer.begin(seed)
    with torch.no_grad():
        layer.final_layernorm.weight.copy_(norm)
    return layer


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


def load_mtp(policy: Path) -> MtpLayer:
    """Load the MTP layer of the policy in a folder, in float32, to train it.

    Raises ValueError with a one-line message if the policy has another form: das trains a single layer like MiMo's, of
    a policy whose lm_head is its embedding.
    """
    if not is_mimo(policy):
        raise ValueError(f"mtp: das trains the MTP layer of a {ARCHITECTURE}, and {policy} is no such policy")
    config = json.loads((policy / CONFIG).read_text())
    if not config.get("tie_word_embeddings"):
        raise ValueError(f"mtp: {policy} has an lm_head beside its embedding: das does not train its MTP layer")
    layer = MtpLayer(mtp_shape(config))
    found = {name.removeprefix(FIRST): value.float() for name, value in mtp_tensors(policy)}
    if odd := layer.misfit(found):
        raise ValueError(f"mtp: the MTP layer of {policy} does not fit its {CONFIG} ({odd})")
    layer.load_state_dict(found)
    return layer


def put_back(saved: Path, tensors: Tensors) -> None:
    """Complete a policy that transformers saved in a folder, so that vLLM drafts with its MTP layers.

    saved: a folder with the config.json and model.safetensors of a Qwen2. transformers can still load it afterwards.
    tensors: the layers' weights, under the names of MiMo's files.
    """
    layers = {name.removeprefix(LAYERS).split(".")[0] for name, _ in tensors}
    config = json.loads((saved / CONFIG).read_text())
    config |= {"architectures": [ARCHITECTURE], "num_nextn_predict_layers": len(layers)}
    (saved / CONFIG).write_text(json.dumps(config, indent=1))
    save_file({name: value.contiguous() for name, value in tensors}, saved / WEIGHTS, {"format": "pt"})
