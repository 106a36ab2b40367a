"""The head of EAGLE-3: one decoder layer that drafts from hidden states of the policy.

It reads the hidden states after some of the policy's layers and the embedding of the next token, which is the policy's
own, and predicts the token after that. For deeper drafts it reads its own last hidden state in place of the policy's.
Its loss unrolls that. vLLM computes the same in vllm/model_executor/models/llama_eagle3.py; names and files are those
that it loads.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from das.training.unrolled import Attended, UnrolledDrafter, attention


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head. All but `aux_layers` follow from the policy."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    aux_layers: tuple[int, ...]  # the policy's hidden states after so many layers are read


def shape_for(policy: Mapping[str, Any]) -> HeadShape:
    """The shape of a head for a policy. policy: its config.json."""
    heads, layers = policy["num_attention_heads"], policy["num_hidden_layers"]
    return HeadShape(
        hidden_size=policy["hidden_size"],
        intermediate_size=policy["intermediate_size"],
        heads=heads,
        kv_heads=policy["num_key_value_heads"],
        head_dim=policy.get("head_dim") or policy["hidden_size"] // heads,
        vocabulary=policy["vocab_size"],
        max_positions=policy["max_position_embeddings"],
        rope_theta=policy["rope_parameters"]["rope_theta"],
        norm_eps=policy["rms_norm_eps"],
        # An early, a middle and a late layer: vLLM's choice, which needs seven layers to be three.
        aux_layers=(2, layers // 2, layers - 3) if layers > 6 else _few(layers),
    )


def _few(layers: int) -> tuple[int, ...]:
    """The auxiliary layers of a small policy: the first, the middle and the last but one, as far as they differ."""
    return tuple(sorted({1, max(1, layers // 2), max(1, layers - 1)}))


class Eagle3Head(UnrolledDrafter):
    """The head. Its parameters have the names of vLLM's files."""

    def __init__(self, shape: HeadShape):
        """The weights are left empty: see `new_head` and `load_head`."""
        super().__init__()
        self.shape, self.aux_layers = shape, shape.aux_layers
        hidden, query, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        with torch.device("meta"):  # so that no random number of the process is drawn
            self.fc = nn.Linear(len(shape.aux_layers) * hidden, hidden, bias=False)
            projections = {"q_proj": (2 * hidden, query), "k_proj": (2 * hidden, kv), "v_proj": (2 * hidden, kv)}
            projections["o_proj"] = (query, hidden)
            inner = shape.intermediate_size
            mlp = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
            norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
            self.midlayer = nn.ModuleDict(
                {
                    "self_attn": nn.ModuleDict(
                        {name: nn.Linear(*size, bias=False) for name, size in projections.items()}
                    ),
                    "mlp": nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in mlp.items()}),
                    **{name: nn.RMSNorm(hidden, eps=shape.norm_eps) for name in norms},
                }
            )
            self.norm = nn.RMSNorm(hidden, eps=shape.norm_eps)
            self.lm_head = nn.Linear(hidden, shape.vocabulary, bias=False)
        self.to_empty(device="cpu")

    def matrices(self) -> list[nn.Parameter]:
        """All weight matrices but lm_head's."""
        return [value for name, value in self.named_parameters() if value.ndim == 2 and name != "lm_head.weight"]

    def unrolled(
        self, tokens: torch.Tensor, hidden: torch.Tensor, embedding: torch.Tensor, depth: int
    ) -> Iterator[torch.Tensor]:
        """See UnrolledDrafter."""
        places = len(tokens) - 1
        state = self.fc(hidden[:places])
        attended: Attended = []
        for step in range(min(depth, places)):
            last = places - step
            positions = torch.arange(step, places, device=tokens.device)
            state = self._layer(state[:last], embedding[tokens[step + 1 :]], positions, attended)
            yield self.lm_head(self.norm(state))

    def _layer(
        self, state: torch.Tensor, embeds: torch.Tensor, positions: torch.Tensor, attended: Attended
    ) -> torch.Tensor:
        """The decoder layer on one step of the drafts from all places, [places, hidden size]. Adds to `attended`."""
        parts: Any = self.midlayer
        mixed = torch.cat([parts["input_layernorm"](embeds), parts["hidden_norm"](state)], -1)
        shape = self.shape
        query, key, value = (
            parts["self_attn"][name](mixed).view(len(mixed), -1, shape.head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = attention(query, key, value, positions, shape.rope_theta, attended)
        state = state + parts["self_attn"]["o_proj"](mixed)
        normed, mlp = parts["post_attention_layernorm"](state), parts["mlp"]
        return state + mlp["down_proj"](functional.silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed))


def new_head(shape: HeadShape, lm_head: torch.Tensor, norm: torch.Tensor, seed: int) -> Eagle3Head:
    """A head that has learned nothing. lm_head, norm: weights of the policy, from which its own start."""
    head = Eagle3Head(shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(head.named_parameters()):
            if parameter.ndim == 2 and name != "lm_head.weight":
                parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            else:
                parameter.fill_(1.0)
        head.lm_head.weight.copy_(lm_head)
        head.norm.weight.fill_(float(norm.float().mean()))
    return head
