"""Coupled drafts against what the verifier samples: how often they are accepted.

Bugs made on purpose with which these tests were seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from plain_batch import PlainRunner
from vllm import SamplingParams

from das.models.coupled import OF_MODELS, CoupledSampler
from das.verify.noise import keyed_argmax

VOCAB, DEPTH = 40, 4


def quantized(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """The weight, rounded to `bits` within each group of so many inputs."""
    grouped = weight.reshape(len(weight), -1, group)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    step = (high - low).clamp_min(1e-8) / (2**bits - 1)
    rounded: torch.Tensor = (((grouped - low) / step).round() * step + low).reshape(weight.shape)
    return rounded


@torch.no_grad()
def test_a_quantized_copy_is_accepted_as_often_as_any_exact_verification_could(tiny_policy: str) -> None:
    """1 - TV is the optimum, which rejection sampling reaches. Coupled drafts lie at it for a near copy, and above
    (1 - TV) / (1 + TV) for any. Here after random texts.
    """
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    texts = torch.randint(6, 250, (64, 160), generator=torch.Generator().manual_seed(0))
    seeds, positions = np.repeat(np.arange(64), 160), np.tile(np.arange(160), 64)
    target = policy(texts).logits.flatten(0, 1)
    emitted = keyed_argmax(target, seeds, positions)
    for bits in (4, 8):
        copied = copy.deepcopy(policy)
        for name, module in copied.named_modules():
            if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                module.weight.data = quantized(module.weight.data, bits, group=8)
        drafter = copied(texts).logits.flatten(0, 1)
        drawn = keyed_argmax(drafter * OF_MODELS, seeds, positions), drafter.argmax(-1)
        coupled, likeliest = (float((tokens == emitted).double().mean()) for tokens in drawn)
        share = torch.minimum(target.double().softmax(-1), drafter.double().softmax(-1)).sum(-1)  # 1 - TV
        noise = 3 / 2 / len(emitted) ** 0.5  # three standard errors of a share, at most
        assert (share / (2 - share)).mean() - noise < coupled < share.mean() + noise
        assert share.mean() - likeliest > 0.1  # what coupling is for
    assert abs(coupled - share.mean()) < 0.005


class Loop:
    """An engine without a model, in which what is verified drafts for itself. Every request has its own text."""

    def __init__(self, params: Sequence[SamplingParams], logits: Callable[[list[int]], torch.Tensor]):
        self.runner, self.sampler = PlainRunner(params, VOCAB, DEPTH), CoupledSampler(OF_MODELS)
        self.logits = logits  # of a text's next token
        self.texts: list[list[int]] = [[0] for _ in params]
        self.accepted = 0

    def round(self) -> None:
        """Draft DEPTH tokens for every request, and verify them."""
        self.sampler.begin(self.runner.batch, self.runner.draws.processed_rows)
        drafts: list[list[int]] = [[] for _ in self.texts]
        for _ in range(DEPTH):
            logits = torch.stack([self.logits(text + own) for text, own in zip(self.texts, drafts, strict=True)])
            for own, token in zip(drafts, self.sampler.draw(logits).tolist(), strict=True):
                own.append(token)
        rows = [
            self.logits(text + own[:depth])
            for text, own in zip(self.texts, drafts, strict=True)
            for depth in range(DEPTH + 1)
        ]
        output = self.runner.sample(torch.stack(rows), drafts)
        emitted = [[token for token in row if token >= 0] for row in output.sampled_token_ids.tolist()]
        for text, tokens in zip(self.texts, emitted, strict=True):
            text += tokens
        self.runner.emit(np.array([len(tokens) for tokens in emitted]))
        self.accepted += sum(map(len, emitted)) - len(emitted)


FEATURES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 5},
    {"min_p": 0.05},
    {"min_tokens": 20, "max_tokens": 50, "stop_token_ids": list(range(0, VOCAB, 3))},
    {"logit_bias": {3: 4.0, 5: -4.0}},
    {"allowed_token_ids": [1, 2, 3, 5, 8, 13, 21, 34]},
]


def test_the_policy_itself_drafts_exactly_what_is_emitted_whatever_a_request_asks_for() -> None:
    table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0)) * 2.5  # a Markov chain
    params = [SamplingParams(seed=seed, **arguments) for seed, arguments in enumerate(FEATURES)]
    loop = Loop(params, lambda text: table[text[-1]].clone())
    for _ in range(10):
        loop.round()
    assert loop.accepted == 10 * DEPTH * len(FEATURES)
