"""The keyed noise is a pure function of seed and position, Gumbel-distributed, and has the same bits in C and torch."""

import numpy as np
import torch
from scipy.stats import chisquare, kstest

from das.verify.noise import device_keys, draw_on_device, keyed_argmax, keyed_verify
from tests.made_noise import native_noise, row_keys, torch_noise


def keys(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return row_keys(np.arange(rows, dtype=np.int64) * 7919, np.arange(rows, dtype=np.int64))


def test_c_and_torch_agree_to_the_last_bit() -> None:
    key0, key1 = keys(8)
    in_c = np.stack([native_noise(int(a), int(b), 50_000) for a, b in zip(key0, key1, strict=True)])
    in_torch = torch_noise(torch.from_numpy(key0.view(np.int32)), torch.from_numpy(key1.view(np.int32)), 50_000).numpy()
    assert np.array_equal(in_c, in_torch)


def test_noise_is_gumbel() -> None:
    # Fails, for example, if one of the two mixing rounds of keyed.c is dropped: positions become correlated.
    key0, key1 = keys(4000)
    noise = torch_noise(torch.from_numpy(key0.view(np.int32)), torch.from_numpy(key1.view(np.int32)), 64).numpy()
    assert kstest(noise.ravel(), "gumbel_r").pvalue > 1e-3
    for column in (0, 1, 63):  # also over positions, at one token
        assert kstest(noise[:, column], "gumbel_r").pvalue > 1e-3
    assert abs(np.corrcoef(noise[:-1, 3], noise[1:, 3])[0, 1]) < 0.06  # neighbouring positions
    assert abs(np.corrcoef(noise[:, 3], noise[:, 4])[0, 1]) < 0.06  # neighbouring tokens


def test_tokens_follow_the_softmax() -> None:
    # Fails if the noise is scaled by anything but 1, e.g. `0.9 * gumbel` in keyed.c.
    logits = torch.randn(24, generator=torch.Generator().manual_seed(1)) * 2
    draws = 200_000
    seeds = np.repeat(np.arange(100, dtype=np.int64), draws // 100)
    positions = np.tile(np.arange(draws // 100, dtype=np.int64), 100)
    tokens = keyed_argmax(logits.expand(draws, -1), seeds, positions, np.zeros(draws, bool))
    expected = logits.double().softmax(-1).numpy() * draws
    assert chisquare(np.bincount(tokens.numpy(), minlength=24), expected).pvalue > 1e-3


def test_greedy_rows_take_the_first_argmax_and_masked_tokens_never_win() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, -1.0], [-torch.inf, 0.0, -torch.inf, -torch.inf]])
    for position in range(50):
        tokens = keyed_argmax(logits, np.array([1, 2]), np.full(2, position), np.array([True, False]))
        assert tokens.tolist() == [1, 1]


def test_verifying_equals_sampling_every_row_and_accepting_the_common_prefix() -> None:
    # By a device's way, too.
    # Seen to fail with `n + 1 < last` in place of `n < last` in keyed.c, and without `draft_tokens += last`.
    rng = np.random.default_rng(0)
    for trial in range(200):
        requests = int(rng.integers(1, 9))
        num_drafted = rng.integers(0, 6, requests)
        rows = int(num_drafted.sum()) + requests
        logits = torch.from_numpy(rng.normal(size=(rows, 20)).astype(np.float32))
        seeds, positions = rng.integers(-(2**62), 2**62, requests), rng.integers(0, 1000, requests)
        greedy = rng.random(requests) < 0.3 if trial % 2 else None
        owner = np.repeat(np.arange(requests), num_drafted + 1)
        offset = np.concatenate([np.arange(n + 1) for n in num_drafted])
        greedy_rows = None if greedy is None else greedy[owner]
        tokens = keyed_argmax(logits, seeds[owner], positions[owner] + offset, greedy_rows)
        matching = tokens[torch.from_numpy(offset < num_drafted[owner])].to(torch.int32)
        altered = torch.from_numpy(rng.random(len(matching)) < 0.25)
        draft_tokens = torch.where(altered, (matching + 1) % 20, matching)
        width = int(num_drafted.max()) + 1 + trial % 3 % 2
        emitted = keyed_verify(logits, num_drafted, draft_tokens, seeds, positions, greedy, width)
        inputs = torch.zeros(rows, dtype=torch.int32)
        inputs[torch.from_numpy(offset > 0)] = draft_tokens
        keys = seeds[owner], positions[owner] + offset, np.zeros(rows, bool) if greedy is None else greedy[owner]
        starts = torch.from_numpy(np.cumsum([0, *(num_drafted + 1)]))
        there = draw_on_device(logits, inputs, starts, *map(torch.from_numpy, keys), width)
        assert torch.equal(emitted, there)
        halves = [half.tolist() for half in device_keys(*map(torch.from_numpy, keys[:2]))]
        expected_halves = [half.view(np.int32).tolist() for half in row_keys(*keys[:2])]
        assert halves == expected_halves
        first_row = first_draft = 0
        for row, n in zip(emitted.tolist(), num_drafted.tolist(), strict=True):
            num_accepted = 0
            while num_accepted < n and draft_tokens[first_draft + num_accepted] == tokens[first_row + num_accepted]:
                num_accepted += 1
            expected = tokens[first_row : first_row + num_accepted + 1].tolist()
            assert row == [*expected, *[-1] * (emitted.shape[1] - len(expected))]
            first_row, first_draft = first_row + n + 1, first_draft + n
