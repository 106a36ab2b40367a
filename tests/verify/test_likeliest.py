"""The distributions that the sampler hands out for drafters: C and torch agree, and both are right."""

import numpy as np
import pytest
import torch

from das.drafter.distributions import MAX_LEVEL, NO_PAIR, PAIRS
from das.verify.noise import likeliest
from tests.made_noise import packed, torch_likeliest


@pytest.mark.parametrize(("vocab", "scale"), [(1, 1.0), (3, 8.0), (257, 1.0), (20_000, 8.0)])
def test_pairs_are_the_likeliest_tokens(vocab: int, scale: float) -> None:
    logits = scale * torch.randn(40, vocab, generator=torch.Generator().manual_seed(vocab))
    logits[3, 0] = -torch.inf if vocab > 1 else 0.0
    found = likeliest(logits, np.arange(40))
    in_torch = np.full_like(found, NO_PAIR)
    in_torch[:, : min(PAIRS, vocab)] = torch_likeliest(logits).numpy().view(np.uint32)
    logprobs, tokens = torch.log_softmax(logits, dim=-1).topk(min(PAIRS, vocab))
    expected = packed(tokens.numpy(), logprobs.numpy())
    for pairs in (found, in_torch):
        levels, listed = pairs[:, : expected.shape[1]] & 31, pairs[:, : expected.shape[1]] != NO_PAIR
        assert (pairs[:, expected.shape[1] :] == NO_PAIR).all()
        # The last bit of a log-prob decides where it lies between two levels.
        both = listed & (expected != NO_PAIR)
        assert (np.abs(levels.astype(int) - (expected & 31).astype(int))[both] <= 1).all()
        assert (listed == (expected != NO_PAIR)).mean() > 0.99
        assert levels[listed].max(initial=0) <= MAX_LEVEL
        assert (pairs[:, : expected.shape[1]][both] >> 5 == (expected >> 5)[both]).all()
    assert (found == in_torch).mean() > 0.98


def test_rows_that_are_not_needed_are_left_out() -> None:
    logits = torch.randn(5, 64).repeat(1, 2)[:, :64]  # rows with a stride of their own
    pairs = likeliest(logits, np.array([0, 3]))
    assert (pairs[[1, 2, 4]] == NO_PAIR).all()
    assert np.array_equal(pairs[[0, 3]], likeliest(logits.contiguous(), np.arange(5))[[0, 3]])
