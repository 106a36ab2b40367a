"""A layer for multi-token prediction (MTP) of a Qwen2-shaped policy, like the layer of MiMo, in torch.

The layer reads the policy's last hidden state, before the last norm, and the embedding of the next token. It predicts
the token after that, with the policy's lm_head. For later tokens of a draft it reads its own last hidden state. vLLM
computes the same in vllm/model_executor/models/mimo_mtp.py; the names of the weights are those of MiMo's files.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from experiments.heads.eagle3 import Attended, Eagle3Head, HeadShape, gated_mlp, shape_for
from experiments.heads.files import LAYERS

FIRST = LAYERS + "0."


class MtpLayer(Eagle3Head):
    """The layer. Its parameters have the names of MiMo's files, without FIRST. `new_mtp` fills them."""

    def lay_out(self, shape: HeadShape) -> None:
        """Make the parameters of the layer, for this shape. See Eagle3Head."""
        hidden, query, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.input_proj = nn.Linear(2 * hidden, hidden, bias=False)
        projections = {"q_proj": (hidden, query), "k_proj": (hidden, kv), "v_proj": (hidden, kv)}
        self.self_attn = nn.ModuleDict({name: nn.Linear(*size) for name, size in projections.items()})
        self.self_attn["o_proj"] = nn.Linear(query, hidden, bias=False)
        self.mlp = gated_mlp(shape)
        for norm in ("token_layernorm", "hidden_layernorm", "input_layernorm", "post_attention_layernorm"):
            setattr(self, norm, nn.RMSNorm(hidden, eps=shape.norm_eps))
        self.final_layernorm = nn.RMSNorm(hidden, eps=shape.norm_eps)

    def unrolled(
        self, tokens: torch.Tensor, hidden: torch.Tensor, embedding: torch.Tensor, depth: int
    ) -> Iterator[torch.Tensor]:
        """Yield logits for each drafted token. See Eagle3Head. The embedding is also the lm_head."""
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

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
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
