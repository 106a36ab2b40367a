"""The head of EAGLE-3: one decoder layer that drafts from hidden states of the policy.

It reads the hidden states after some of the policy's layers and the embedding of the next token, which is the policy's
own, and predicts the token after that. For deeper drafts it reads its own last hidden state in place of the policy's.
Its loss unrolls that. vLLM computes the same in vllm/model_executor/models/llama_eagle3.py; names and files are those
that it loads.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from das.training.trained_drafter import HeadText, TrainedDrafter

Attended = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each step so far, [tokens, heads, head_dim]


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


class Eagle3Head(TrainedDrafter):
    """The head. Its parameters have the names of vLLM's files."""

    def __init__(self, shape: HeadShape):
        """The weights are left empty: see `new_head` and `load_head`."""
        super().__init__()
        self.shape, self.aux_layers = shape, shape.aux_layers
        hidden, query, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        with torch.device("meta"):  # so that no random number of the process is drawn
            self.fc = nn.Linear(len(shape.aux_layers) * hidden, hidden, bias=False)
            attention = {"q_proj": (2 * hidden, query), "k_proj": (2 * hidden, kv), "v_proj": (2 * hidden, kv)}
            attention["o_proj"] = (query, hidden)
            inner = shape.intermediate_size
            mlp = {"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)}
            norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
            self.midlayer = nn.ModuleDict(
                {
                    "self_attn": nn.ModuleDict(
                        {name: nn.Linear(*size, bias=False) for name, size in attention.items()}
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
        """Logits of drafts from every place of a text, for drafted token 1, 2, ... `depth`.

        tokens: [tokens] ids. hidden: [tokens, aux layers * hidden size], the policy's. embedding: the policy's weights
        [vocabulary, hidden size]. The draft from place t knows tokens up to t + 1; row t of result number j, counted
        from 0, predicts token t + 2 + j, given those before it. Result j has [tokens - 1 - j, vocabulary].
        """
        places = len(tokens) - 1
        state = self.fc(hidden[:places])
        attended: Attended = []
        for step in range(min(depth, places)):
            last = places - step
            positions = torch.arange(step, places, device=tokens.device)
            state = self._layer(state[:last], embedding[tokens[step + 1 :]], positions, attended)
            yield self.lm_head(self.norm(state))

    def loss(self, text: HeadText, embedding: torch.Tensor, depth: int) -> torch.Tensor | None:
        """Mean KL divergence from the policy's distribution to the head's, in nats, over places and `depth` steps.

        None for a response that is too short for a draft.
        """
        total, count = torch.zeros((), device=text.logits.device), 0
        for step, logits in enumerate(self.unrolled(text.tokens, text.hidden, embedding, depth)):
            rows, of_policy = places_of(text, step)
            target = text.logits[of_policy].log_softmax(-1)
            if not len(target):
                break
            total = total + functional.kl_div(logits[rows].log_softmax(-1), target, reduction="sum", log_target=True)
            count += len(target)
        return total / count if count else None

    def _layer(
        self, state: torch.Tensor, embeds: torch.Tensor, positions: torch.Tensor, attended: Attended
    ) -> torch.Tensor:
        """The decoder layer on one step of the drafts from all places, [places, hidden size]. Adds to `attended`.

        A place sees the keys of the first step up to its own, and those of its own draft in the later steps.
        """
        parts: Any = self.midlayer
        mixed = torch.cat([parts["input_layernorm"](embeds), parts["hidden_norm"](state)], -1)
        shape = self.shape
        query, key, value = (
            parts["self_attn"][name](mixed).view(len(mixed), -1, shape.head_dim)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        query, key = _rotated(query, positions, shape.rope_theta), _rotated(key, positions, shape.rope_theta)
        repeats = shape.heads // shape.kv_heads
        attended.append((key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)))
        (first_keys, first_values), *own = attended
        places = len(mixed)
        scores = torch.einsum("qhd,khd->hqk", query, first_keys[:places])
        later = torch.ones(places, places, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
        of_own = [torch.einsum("qhd,qhd->hq", query, keys[:places])[..., None] for keys, _ in own]
        weights = (torch.cat([scores, *of_own], -1) / math.sqrt(shape.head_dim)).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights[..., :places], first_values[:places])
        for step, (_, values) in enumerate(own):
            mixed = mixed + weights[..., places + step].T[..., None] * values[:places]
        state = state + parts["self_attn"]["o_proj"](mixed.flatten(1))
        normed, mlp = parts["post_attention_layernorm"](state), parts["mlp"]
        return state + mlp["down_proj"](functional.silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed))


def _rotated(heads: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, head_dim] at these positions."""
    half = heads.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, device=heads.device, dtype=torch.float32) / half)
    angles = (positions[:, None] * speeds)[:, None]
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.split(half, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


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


def places_of(text: HeadText, step: int) -> tuple[slice, slice]:
    """Where a text's drafts are judged: rows of result number `step` of `unrolled`, and rows of `text.logits`.

    Drafting begins once the first response token is known, and a draft ends with the last one.
    """
    tokens = len(text.tokens)
    return slice(text.prompt - 1, tokens - 2 - step), slice(step, tokens - 1 - text.prompt)


@torch.no_grad()
def agreement(head: Eagle3Head, texts: Sequence[HeadText], embedding: torch.Tensor, depth: int) -> list[float]:
    """By depth: the share of places at which the head's likeliest token is the text's own."""
    hits, counts = [0] * depth, [0] * depth
    for text in texts:
        for step, logits in enumerate(head.unrolled(text.tokens, text.hidden, embedding, depth)):
            rows, _ = places_of(text, step)
            drafted = logits[rows].argmax(-1)
            truth = text.tokens[text.prompt + 1 + step :]
            hits[step] += int((drafted == truth).sum())
            counts[step] += len(truth)
    return [hit / count for hit, count in zip(hits, counts, strict=True) if count]


@torch.no_grad()
def tokens_per_pass(head: Eagle3Head, texts: Sequence[HeadText], embedding: torch.Tensor, depth: int) -> float:
    """Tokens a pass with drafts of `depth` likeliest tokens, counted on the texts without an engine."""
    tokens = passes = 0
    for text in texts:
        drafts = [logits.argmax(-1) for logits in head.unrolled(text.tokens, text.hidden, embedding, depth)]
        length, known = len(text.tokens), text.prompt + 1
        passes += 1  # of the prompt, which gives the first token
        while known < length:
            accepted = 0
            while (
                accepted < len(drafts)
                and known + accepted < length
                and drafts[accepted][known - 2] == text.tokens[known + accepted]
            ):
                accepted += 1
            known += accepted + 1
            passes += 1
        tokens += length - text.prompt
    return tokens / passes
