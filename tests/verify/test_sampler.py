"""The sampler in cases that generated batches rarely reach."""

import math

import numpy as np
import pytest
import torch
from plain_batch import PlainRunner
from vllm import SamplingParams

from das.drafter.distributions import PAIRS
from das.verify.layout import Remembered, of_passes_alike, remembered_of


def test_log_probs_do_not_depend_on_the_neighbours_top_p() -> None:
    # Seen to fail (-inf beside the neighbour) when a top_p of 1 is passed to vLLM's mask unchanged.
    logits = torch.tensor([[0.0, 0.0, -30.0, -40.0]])
    params = SamplingParams(seed=1, temperature=0.2, logprobs=3)
    neighbour = SamplingParams(seed=2, temperature=0.2, top_p=0.9, logprobs=3)
    single = PlainRunner([params], 4).sample(logits.clone(), None).logprobs_tensors
    double = PlainRunner([params, neighbour], 4).sample(logits.repeat(2, 1), None).logprobs_tensors
    assert torch.equal(single.logprobs[0], double.logprobs[0])
    assert single.logprobs[0].min() > -math.inf


def test_vllms_pieces_of_a_pass_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.worker.gpu.spec_decode import rejection_sampler

    vocab, requests, rng = 60, 23, np.random.default_rng(1)
    kinds = [
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01, "logprobs": 0},
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.3, "logit_bias": {3: 5.0}, "min_tokens": 9, "stop_token_ids": [1, 2]},
        {"allowed_token_ids": list(range(40))},
    ]
    params = [SamplingParams(seed=i, **kinds[i % len(kinds)]) for i in range(requests)]
    drafts = [rng.integers(0, vocab, rng.integers(0, 7)).tolist() for _ in range(requests)]
    rows = requests + sum(map(len, drafts))
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3
    found = []
    for most in (10**6, 40, 11, 1):
        monkeypatch.setattr(rejection_sampler, "get_max_chunk_logits", lambda vocab, most=most: most)
        runner = PlainRunner(params, vocab, 6)
        found.append(runner.sample(logits.clone(), drafts))
    for other in found[1:]:
        assert torch.equal(other.sampled_token_ids, found[0].sampled_token_ids)
        for i in range(3):
            assert torch.equal(other.logprobs_tensors[i], found[0].logprobs_tensors[i])


def test_what_passes_alike_remember_is_what_one_pass_of_all_their_tokens_would() -> None:
    """Two requests, three passes; the first pass was sampled in two pieces."""
    pairs = np.arange(6 * PAIRS, dtype=np.uint32).reshape(6, PAIRS)
    only, both = np.zeros(1, np.int64), np.zeros(2, np.int64)
    passes = [
        [Remembered(pairs[:1], only), Remembered(pairs[1:2], only)],
        [Remembered(pairs[2:4], both)],
        [Remembered(pairs[4:], both)],
    ]
    found = remembered_of(of_passes_alike(passes), [0, 1], [3, 2])
    assert found is not None
    assert found.tolist() == pairs[[0, 2, 4, 1, 3]].tolist()
    assert of_passes_alike([passes[0], []]) == []
