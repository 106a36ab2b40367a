"""The head of EAGLE-3: one decoder layer that drafts from hidden states of the policy.

The head reads the hidden states after some of the policy's layers, and the policy's embedding of the next token. It
predicts the token after that. For later tokens of a draft it reads its own last hidden state in place of the policy's.
vLLM computes the same in vllm/model_executor/models/llama_eagle3.py, and loads the same files and names of weights.
"""

from collections.abc import Iterator

import torch
from torch import nn

from experiments.heads.unrolled import Attended, HeadShape, UnrolledDrafter, gated_mlp, linears


class Eagle3Head(UnrolledDrafter):
    """An EAGLE-3 head. Its parameters have the names of vLLM's files. `new_head` and `load_head` fill its weights."""

    def lay_out(self, shape: HeadShape) -> None:
        """See UnrolledDrafter."""
        hidden, query, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.fc = nn.Linear(len(shape.aux_layers) * hidden, hidden, bias=False)
        projections = {"q_proj": (2 * hidden, query), "k_proj": (2 * hidden, kv), "v_proj": (2 * hidden, kv)}
        projections["o_proj"] = (query, hidden)
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        self.midlayer = nn.ModuleDict(
            {
                "self_attn": linears(projections),
                "mlp": gated_mlp(shape),
                **{name: nn.RMSNorm(hidden, eps=shape.norm_eps) for name in norms},
            }
        )
        self.norm = nn.RMSNorm(hidden, eps=shape.norm_eps)
        self.lm_head = nn.Linear(hidden, shape.vocabulary, bias=False)

    def matrices(self) -> list[nn.Parameter]:
        """See UnrolledDrafter."""
        return [value for name, value in self.named_parameters() if value.ndim == 2 and name != "lm_head.weight"]

    def unrolled(
        self, tokens: torch.Tensor, hidden: torch.Tensor, embedding: torch.Tensor, depth: int
    ) -> Iterator[torch.Tensor]:
        """See UnrolledDrafter."""
        places = len(tokens) - 1
        state = self.fc(hidden[:places])
        attended: Attended = []
        for step in range(min(depth, places)):
            positions = torch.arange(step, places, device=tokens.device)
            state, parts = state[: places - step], self.midlayer
            embeds = parts["input_layernorm"](embedding[tokens[step + 1 :]])
            read = torch.cat([embeds, parts["hidden_norm"](state)], -1)
            state = self.decoded(parts, state, read, positions, attended)
            yield self.lm_head(self.norm(state))


def new_head(shape: HeadShape, lm_head: torch.Tensor, norm: torch.Tensor, seed: int) -> Eagle3Head:
    """Make a head that has learned nothing. lm_head: the policy's, of which the head gets a copy. norm: weights of the
    policy's last norm; the head's own norm starts with their mean."""
    head = Eagle3Head(shape)
    head.begin(seed)
    with torch.no_grad():
        head.lm_head.weight.copy_(lm_head)
        head.norm.weight.fill_(float(norm.float().mean()))
    return head
