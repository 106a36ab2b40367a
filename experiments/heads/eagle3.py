"""The head of EAGLE-3: one decoder layer that drafts from hidden states of the policy, and learns its distribution.

The head reads the hidden states after some of the policy's layers, and the policy's embedding of the next token. It
predicts the token after that. For later tokens of a draft it reads its own last hidden state in place of the policy's.
vLLM computes the same in vllm/model_executor/models/llama_eagle3.py, and loads the same files and names of weights. The
loss computes drafts from all positions of a text at once.

HeadTexts are hooks that copy the training data from the policy's own forward passes. A training step computes hidden
states and the policy's distribution anyway. The hooks copy both for a sample of the responses. They detach the copies
and draw from a generator of their own, so no bit of the policy's training changes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

IGNORED = -100  # label of a token outside the response


@dataclass(frozen=True)
class HeadText:
    """A text that a drafter learns from: a prompt, the policy's response, and the policy's tensors for both."""

    tokens: torch.Tensor  # [tokens] ids
    hidden: torch.Tensor  # [tokens, aux layers * hidden size]
    logits: torch.Tensor  # the policy's, for the token after each response token: [response tokens, vocabulary]
    prompt: int  # number of tokens of the prompt


class HeadTexts:
    """Copies texts from the forward passes of `model` that get labels. TRL passes a label for each response token."""

    def __init__(self, model: Any, aux_layers: Sequence[int], share: float, seed: int, training_only: bool):
        """model: the policy, a model of transformers. share: the share of responses that is copied; each step draws
        other responses. training_only: copy only from passes that a backward pass will follow.

        Raises ValueError for a model without a list of decoder layers and a last norm.
        """
        decoder, self._lm_head = model.get_decoder(), model.get_output_embeddings()
        if not hasattr(decoder, "layers") or not hasattr(decoder, "norm") or self._lm_head is None:
            raise ValueError(
                f"a {type(model).__name__} has no decoder layers, last norm and lm_head that a drafter could learn from"
            )
        self.share, self._seed, self._training_only = share, seed, training_only
        self._aux_layers = tuple(aux_layers)
        self._texts: list[HeadText] = []
        self._rng = np.random.default_rng((seed, 0))
        self._rows: list[int] = []  # rows that are copied in the running pass; empty outside of a pass
        self._seen: dict[int | str, torch.Tensor] = {}  # tensors that the hooks of the running pass copied
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            *(decoder.layers[layer - 1].register_forward_hook(self._copy(layer)) for layer in self._aux_layers),
            decoder.norm.register_forward_hook(self._copy("last")),
            model.register_forward_hook(self._end, with_kwargs=True),
        ]

    def close(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def begin_step(self, step: int) -> None:
        """Begin training step `step`. Only the number of the step decides which of its texts are copied."""
        self._rng = np.random.default_rng((self._seed, step))

    def take(self) -> list[HeadText]:
        """Returns the texts that were copied since the last call."""
        texts, self._texts = self._texts, []
        return texts

    def _begin(self, model: Any, args: Any, kwargs: dict[str, Any]) -> None:
        labels = kwargs.get("labels")
        if labels is None or (self._training_only and not torch.is_grad_enabled()):
            return
        self._rows = (self._rng.random(len(labels)) < self.share).nonzero()[0].tolist()

    def _copy(self, name: int | str) -> Any:
        def copy(module: Any, args: Any, output: Any) -> None:
            if self._rows:
                hidden = output[0] if isinstance(output, tuple) else output
                self._seen[name] = hidden.detach()[self._rows]

        return copy

    def _end(self, model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        rows, self._rows = self._rows, []
        for place, row in enumerate(rows):
            kept = kwargs["attention_mask"][row].bool()
            tokens = kwargs["input_ids"][row][kept]
            responses = (kwargs["labels"][row][kept] != IGNORED).nonzero()
            if not len(responses) or int(responses[0]) == 0:
                continue
            prompt = int(responses[0])
            last = self._seen["last"][place][kept][prompt:]
            with torch.no_grad():
                logits = functional.linear(last, self._lm_head.weight, self._lm_head.bias).float()
            hidden = torch.cat([self._seen[layer][place][kept].float() for layer in self._aux_layers], -1)
            self._texts.append(HeadText(tokens.clone(), hidden, logits, prompt))
        self._seen = {}


# ---- the head ----

Attended = list[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each step so far, [tokens, heads, head_dim]


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head. All except `aux_layers` follow from the policy."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    rope_theta: float
    norm_eps: float
    aux_layers: tuple[int, ...]  # the layers of the policy whose hidden states are read, counted from 1


def shape_for(policy: Mapping[str, Any]) -> HeadShape:
    """Returns the shape of a head for a policy. policy: its config.json."""
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
        # An early, a middle and a late layer. vLLM chooses these; they are three if there are seven layers.
        # For smaller policies: the first, the middle and the last but one layer, without repetitions.
        aux_layers=(
            (2, layers // 2, layers - 3) if layers > 6 else tuple(sorted({1, max(1, layers // 2), max(1, layers - 1)}))
        ),
    )


def linears(sizes: Mapping[str, tuple[int, int]]) -> nn.ModuleDict:
    """Returns linear modules by name. sizes: (inputs, outputs) of each."""
    return nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})


def gated_mlp(shape: HeadShape) -> nn.ModuleDict:
    """Returns the linear modules of a feed-forward layer with a gate."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return linears({"gate_proj": (hidden, inner), "up_proj": (hidden, inner), "down_proj": (inner, hidden)})


class Eagle3Head(nn.Module):
    """An EAGLE-3 head. Its parameters have the names of vLLM's files. `new_head` and `load_head` fill its weights."""

    def __init__(self, shape: HeadShape):
        """Make the modules. Their weights are not initialized."""
        super().__init__()
        self.shape = shape
        with torch.device("meta"):  # so that no random number of the process is drawn
            self.lay_out(shape)
        self.to_empty(device="cpu")

    def lay_out(self, shape: HeadShape) -> None:
        """Make the modules of this shape."""
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
        """Returns the weight matrices that Muon trains: all except that of the lm_head."""
        return [value for name, value in self.named_parameters() if value.ndim == 2 and name != "lm_head.weight"]

    def begin(self, seed: int) -> None:
        """Initialize a head that has learned nothing: random matrices, norms of one, biases of zero. An lm_head is not
        changed.
        """
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in sorted(self.named_parameters()):
                if name == "lm_head.weight":
                    continue
                if parameter.ndim == 2:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)

    def misfit(self, weights: Mapping[str, torch.Tensor]) -> str:
        """Returns the name of a tensor that only one of `weights` and this head has, or whose shape differs; empty
        if all fit."""
        expected = {name: value.shape for name, value in self.named_parameters()}
        odd = weights.keys() ^ expected.keys() or {n for n in expected if weights[n].shape != expected[n]}
        return min(odd, default="")

    def decoded(
        self, layer: Any, state: torch.Tensor, read: torch.Tensor, positions: torch.Tensor, attended: Attended
    ) -> torch.Tensor:
        """Apply the decoder layer in one drafting step, for the drafts from all places (positions of the text) at once.
        Returns the new state [places, hidden size], and adds the step's keys and values to `attended`.

        layer: holds self_attn, post_attention_layernorm and mlp. state: the input to which the layer adds. read: the
        input of its attention, one row for each place.
        """
        attn, mlp = layer.self_attn, layer.mlp
        query, key, value = (
            attn[name](read).view(len(read), -1, self.shape.head_dim) for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = attention(query, key, value, positions, self.shape.rope_theta, attended)
        state = state + attn["o_proj"](mixed)
        normed = layer.post_attention_layernorm(state)
        return state + mlp["down_proj"](functional.silu(mlp["gate_proj"](normed)) * mlp["up_proj"](normed))

    def unrolled(
        self, tokens: torch.Tensor, hidden: torch.Tensor, embedding: torch.Tensor, depth: int
    ) -> Iterator[torch.Tensor]:
        """Yields logits of the drafts from every place (position) of a text, for drafted token 1, then 2, up to
        `depth`.

        tokens: ids [tokens]. hidden: the policy's hidden states [tokens, aux layers * hidden size]. embedding: the
        policy's embedding [vocabulary, hidden size]. The draft at place t knows the tokens up to t + 1. Row t of result
        j, counted from 0, predicts token t + 2 + j, given the tokens before it. Result j has shape [tokens - 1 - j,
        vocabulary].
        """
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

    def loss(self, text: HeadText, embedding: torch.Tensor, depth: int) -> torch.Tensor | None:
        """Returns the mean KL divergence from the policy's distribution to the head's, in nats, over the positions
        of the response and `depth` drafting steps; None if the response is too short for a draft.

        embedding: the policy's embedding [vocabulary, hidden size].
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


def new_head(shape: HeadShape, lm_head: torch.Tensor, norm: torch.Tensor, seed: int) -> Eagle3Head:
    """Make a head that has learned nothing. lm_head: the policy's, of which the head gets a copy. norm: weights of the
    policy's last norm; the head's own norm starts with their mean."""
    head = Eagle3Head(shape)
    head.begin(seed)
    with torch.no_grad():
        head.lm_head.weight.copy_(lm_head)
        head.norm.weight.fill_(float(norm.float().mean()))
    return head


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    positions: torch.Tensor,
    theta: float,
    attended: Attended,
) -> torch.Tensor:
    """Compute attention in one drafting step, for the drafts from all places (positions) at once. Returns [places,
    heads * head_dim], and adds the step's keys and values to `attended`.

    query: [places, heads, head_dim]. key, value: [places, kv heads, head_dim]. positions: [places]. theta: base of the
    rotary embedding. A place sees the keys of the first step up to its own place, and the keys of its own draft in
    later steps.
    """
    query, key = _rotated(query, positions, theta), _rotated(key, positions, theta)
    repeats = query.shape[1] // key.shape[1]
    attended.append((key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)))
    (first_keys, first_values), *own = attended
    places = len(query)
    scores = torch.einsum("qhd,khd->hqk", query, first_keys[:places])
    later = torch.ones(places, places, dtype=torch.bool, device=scores.device).triu(1)
    scores = scores.masked_fill(later, -math.inf)
    of_own = [torch.einsum("qhd,qhd->hq", query, keys[:places])[..., None] for keys, _ in own]
    weights = (torch.cat([scores, *of_own], -1) / math.sqrt(query.shape[-1])).softmax(-1)
    mixed = torch.einsum("hqk,khd->qhd", weights[..., :places], first_values[:places])
    for step, (_, values) in enumerate(own):
        mixed = mixed + weights[..., places + step].T[..., None] * values[:places]
    return mixed.flatten(1)


def _rotated(heads: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    """Apply the rotary embedding to [tokens, heads, head_dim] at these positions."""
    half = heads.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, device=heads.device, dtype=torch.float32) / half)
    angles = (positions[:, None] * speeds)[:, None]
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads.split(half, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def places_of(text: HeadText, step: int) -> tuple[slice, slice]:
    """Returns two slices for the loss of a drafting step: the rows of the step's logits (result `step` of `unrolled`)
    that count, and the rows of `text.logits`, the policy's logits, with which they are compared.

    Drafting begins once the first response token is known, and a draft ends with the last response token.
    """
    tokens = len(text.tokens)
    return slice(text.prompt - 1, tokens - 2 - step), slice(step, tokens - 1 - text.prompt)


@torch.no_grad()
def tokens_per_pass(head: Eagle3Head, texts: Sequence[HeadText], embedding: torch.Tensor, depth: int) -> float:
    """Returns the mean number of tokens that a pass of the policy would emit with this head, counted on the texts
    without an engine. Each draft holds the likeliest token at each of the next `depth` positions.
    """
    tokens = passes = 0
    for text in texts:
        drafts = [logits.argmax(-1) for logits in head.unrolled(text.tokens, text.hidden, embedding, depth)]
        length, known = len(text.tokens), text.prompt + 1
        passes += 1  # the pass over the prompt, which gives the first token
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
