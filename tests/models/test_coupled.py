"""Coupled drafts against what the verifier samples: acceptance, the learned scale, calibrated probabilities.

Bugs made on purpose with which these tests were seen to fail are listed in docs/log.md#faults-made-on-purpose.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from das.budget.acceptance import TokenCalibration
from das.models.coupled import CALIBRATION_MEMORY, CoupledSampler
from das.verify.noise import keyed_argmax, keyed_draft
from experiments.harness.plain_batch import PlainRunner

VOCAB, DEPTH = 40, 4
Logits = Callable[[list[int]], torch.Tensor]  # of a text's next token


def quantized(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """The weight, rounded to `bits` within each group of so many inputs."""
    grouped = weight.reshape(len(weight), -1, group)
    low, high = grouped.amin(-1, keepdim=True), grouped.amax(-1, keepdim=True)
    step = (high - low).clamp_min(1e-8) / (2**bits - 1)
    rounded: torch.Tensor = (((grouped - low) / step).round() * step + low).reshape(weight.shape)
    return rounded


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_a_quantized_copy_is_accepted_as_often_as_any_exact_verification_could(
    tiny_policy: str, temperature: float
) -> None:
    """1 - TV is the optimum, which rejection sampling reaches. Coupled drafts lie at it for a near copy, and above
    (1 - TV) / (1 + TV) for any. Here after random texts.
    """
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    texts = torch.randint(6, 250, (64, 160), generator=torch.Generator().manual_seed(0))
    seeds, positions = np.repeat(np.arange(64), 160), np.tile(np.arange(160), 64)
    target = policy(texts).logits.flatten(0, 1) / temperature
    emitted = keyed_argmax(target, seeds, positions).numpy()[:, None]
    for bits in (4, 8):
        copied = copy.deepcopy(policy)
        for name, module in copied.named_modules():
            if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                module.weight.data = quantized(module.weight.data, bits, group=8)
        drafter = copied(texts).logits.flatten(0, 1) / temperature
        drawn, _ = keyed_draft(drafter, np.array([1.0, np.inf], np.float32), seeds, positions)
        coupled, likeliest = (drawn == emitted).mean(axis=0)
        share = torch.minimum(target.double().softmax(-1), drafter.double().softmax(-1)).sum(-1)  # 1 - TV
        noise = 3 / 2 / len(emitted) ** 0.5  # three standard errors of a share, at most
        assert (share / (2 - share)).mean() - noise < coupled < share.mean() + noise
        assert share.mean() - likeliest > 0.1  # what coupling is for
    assert abs(coupled - share.mean()) < 0.005


class Loop:
    """An engine without a model: target and drafter are tables of logits, and every request has its own text."""

    def __init__(self, params: Sequence[SamplingParams], target: Logits, drafter: Logits, sampler: CoupledSampler):
        self.runner = PlainRunner(params, VOCAB, DEPTH)
        self.target, self.drafter, self.sampler = target, drafter, sampler
        self.texts: list[list[int]] = [[0] for _ in params]
        self.drafted = self.accepted = 0

    def round(self) -> None:
        """Draft DEPTH tokens for every request, verify them, and tell the sampler what was emitted."""
        self.sampler.begin(self.runner)
        drafts: list[list[int]] = [[] for _ in self.texts]
        for _ in range(DEPTH):
            logits = torch.stack([self.drafter(text + own) for text, own in zip(self.texts, drafts, strict=True)])
            for own, token in zip(drafts, self.sampler.draw(logits)[0].tolist(), strict=True):
                own.append(token)
        emitted = self.verify(drafts)
        self.sampler.observe(self.runner.input_batch.req_ids, emitted)
        self.emit(emitted)
        self.drafted += DEPTH * len(emitted)
        self.accepted += sum(map(len, emitted)) - len(emitted)

    def verify(self, drafts: list[list[int]]) -> list[list[int]]:
        """What the verifier emits for each request, given its draft."""
        rows = [
            self.target(text + own[:depth])
            for text, own in zip(self.texts, drafts, strict=True)
            for depth in range(len(own) + 1)
        ]
        output = self.runner.sample(torch.stack(rows), drafts)
        return [[token for token in row if token >= 0] for row in output.sampled_token_ids.tolist()]

    def emit(self, emitted: list[list[int]]) -> None:
        """Let the texts grow."""
        for text, tokens in zip(self.texts, emitted, strict=True):
            text += tokens
        self.runner.emit(np.array([len(tokens) for tokens in emitted]))


def tables(noise: float, sharpness: float = 1.0, seed: int = 0) -> tuple[Logits, Logits]:
    """A Markov chain as target, and a drafter whose logits are the target's, times `sharpness`, plus `noise`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(VOCAB, VOCAB)) * 2.5
    blurred = sharpness * logits + rng.normal(size=logits.shape) * noise
    of_target, of_drafter = (torch.from_numpy(table.astype(np.float32)) for table in (logits, blurred))
    return lambda text: of_target[text[-1]].clone(), lambda text: of_drafter[text[-1]].clone()


def random_params(count: int, **arguments: Any) -> list[SamplingParams]:
    return [SamplingParams(seed=seed, **arguments) for seed in range(count)]


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
    target, _ = tables(0.0)
    params = [SamplingParams(seed=seed, **arguments) for seed, arguments in enumerate(FEATURES)]
    loop = Loop(params, target, target, CoupledSampler((1.0,)))
    for _ in range(10):
        loop.round()
    assert loop.accepted == loop.drafted == 10 * DEPTH * len(FEATURES)


@pytest.mark.parametrize(
    ("noise", "sharpness", "best"), [(0.05, 1.0, {1.0}), (0.3, 0.4, {1.5, 2.0, 3.0})], ids=["near copy", "too flat"]
)
def test_the_scale_is_learned(noise: float, sharpness: float, best: set[float]) -> None:
    target, drafter = tables(noise, sharpness)
    learned, fixed = CoupledSampler(), CoupledSampler((1.0,))
    loops = [Loop(random_params(16), target, drafter, sampler) for sampler in (learned, fixed)]
    for loop in loops:
        for _ in range(250):
            loop.round()
    assert learned.scale in best
    assert fixed.scale == 1.0
    assert learned._hits[learned._used] == learned._hits.max()
    if best != {1.0}:
        assert loops[0].accepted > loops[1].accepted * 1.02
    shortest = min(len(text) for loop in loops for text in loop.texts)
    for one, other in zip(loops[0].texts, loops[1].texts, strict=True):  # drafts change no token
        assert one[:shortest] == other[:shortest]


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.5])
def test_probabilities_are_calibrated(noise: float) -> None:
    target, drafter = tables(noise)
    sampler = CoupledSampler()
    loop = Loop(random_params(16, temperature=0.8), target, drafter, sampler)
    for _ in range(150):
        loop.round()
    sampler._check = TokenCalibration(memory=CALIBRATION_MEMORY)  # the error is measured from now on
    for _ in range(150):
        loop.round()
    assert 0 < sampler.calibration_error < 0.03


def test_what_was_not_verified_teaches_nothing() -> None:
    target, drafter = tables(0.0)
    sampler = CoupledSampler()
    loop = Loop(random_params(3), target, drafter, sampler)
    loop.runner.unfinished[0] = True  # an unfinished prompt
    sampler.begin(loop.runner)
    for _ in range(3):
        sampler.draw(torch.stack([drafter(text) for text in loop.texts]))
    # The first request's prompt was unfinished; the second's first token differs, so the others say nothing; the third
    # is gone.
    names = loop.runner.input_batch.req_ids
    sampler.observe([names[1], names[0], "another"], [[VOCAB + 1, 1, 2], [1, 2, 3], [4]])
    assert sampler._check.counts[0].sum() == 1
    sampler.observe(names, [[1], [2], [3]])  # no round began
    assert sampler._check.counts[0].sum() == 1


def test_a_restored_sampler_goes_on_as_the_first_would_have() -> None:
    target, drafter = tables(0.3, 0.4)
    first, second = CoupledSampler(), CoupledSampler()
    loop = Loop(random_params(4), target, drafter, first)
    for _ in range(60):
        loop.round()
    second.restore(first.state())
    again = copy.deepcopy(loop)
    again.sampler = second
    for each in (loop, again):
        for _ in range(30):
            each.round()
    assert again.accepted == loop.accepted
    reports = [(each.scale, each.calibration_error) for each in (first, second, CoupledSampler())]
    assert reports[0] == reports[1] != reports[2]
    with pytest.raises(ValueError, match="5 scales were learned, and there are 2"):
        CoupledSampler((1.0, 2.0)).restore(first.state())


@pytest.mark.parametrize("scales", [(), (0.0,), (1.0, -2.0)])
def test_bad_scales_are_refused(scales: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="give numbers above 0"):
        CoupledSampler(scales)
