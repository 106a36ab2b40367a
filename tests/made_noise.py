"""Noise as C computes it, what kernels for GPUs do in plain torch, and distributions made from given log-probs."""

import numpy as np
import torch

from das.drafter.distributions import LEVELS_PER_NAT, MAX_LEVEL, NO_PAIR, PAIR_TOKENS, PAIRS
from das.verify import noise


def native_noise(key0: int, key1: int, vocab: int) -> np.ndarray:
    """The Gumbel noise of one row, computed by keyed.c, float32 [vocab]."""
    out = np.empty(vocab, np.float32)
    noise._call("keyed_noise", key0, key1, vocab, out)
    return out


def packed(tokens: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
    """Pack tokens and log-probs, [n, PAIRS] each, likeliest first, into distributions: uint32 [n, PAIRS]."""
    levels = np.rint(-LEVELS_PER_NAT * np.maximum(logprobs, -32.0)).astype(np.uint32)
    listed = (levels <= MAX_LEVEL) & (tokens < PAIR_TOKENS)
    return np.where(listed, tokens.astype(np.uint32) << np.uint32(5) | levels, np.uint32(NO_PAIR))


def _mix32(h: torch.Tensor) -> torch.Tensor:
    """Compute mix32 of das/noise.h on int32 tensors. Multiplication wraps around, and masks make the right shifts
    logical."""
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * 0x21F0AAAD
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * (0xD35A2D97 - (1 << 32))
    return h ^ ((h >> 15) & 0x1FFFF)


def _soft_log(x: torch.Tensor) -> torch.Tensor:
    """Compute soft_log of das/noise.h (a logarithm with the same bits everywhere), operation for operation."""
    bits = x.view(torch.int32)
    e = (bits - 0x3F3504F3) >> 23  # an arithmetic shift, which rounds down for x < sqrt(1/2) too
    m = (bits - (e << 23)).view(torch.float32)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = z * 0.22222222
    for coefficient in (0.2857142857, 0.4, 0.6666666667):
        p = (p + coefficient) * z
    p = p + 2.0
    return e.to(torch.float32) * 0.69314718056 + s * p


def torch_noise(key0: torch.Tensor, key1: torch.Tensor, vocab: int) -> torch.Tensor:
    """Returns Gumbel noise, float32 [rows, vocab], with the bits of keyed.c. key0, key1: halves of the rows' keys,
    int32 [rows]."""
    token = torch.arange(vocab, dtype=torch.int32, device=key0.device) * (0x9E3779B1 - (1 << 32))
    x = _mix32(_mix32(token[None, :] + key0[:, None]) ^ key1[:, None])
    w = (((x >> 1) & 0x7FFFFFFF).to(torch.float32) + 0.5) * 4.656612873e-10
    w = w.clamp_max(0.99999994)
    u = 1.0 - w
    d = 1.0 - u
    e = torch.where(d > 0, -_soft_log(u) * w / d, w)
    return -_soft_log(e)


def row_keys(seeds: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """noise.device_keys in NumPy: uint32 [rows] each."""
    key = noise.splitmix64(noise.splitmix64(seeds.view(np.uint64)) ^ positions.view(np.uint64))
    return (key & np.uint64(0xFFFFFFFF)).astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)


def torch_argmax(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, greedy: torch.Tensor
) -> torch.Tensor:
    """noise.device_argmax in plain torch, on any device."""
    gumbel = torch_noise(*noise.device_keys(seeds, positions), logits.shape[1])
    return (logits + gumbel.masked_fill_(greedy.bool()[:, None], 0.0)).argmax(dim=-1)


def torch_likeliest(logits: torch.Tensor) -> torch.Tensor:
    """What drafters remember of each row, in plain torch: int32 [rows, at most PAIRS]."""
    top, tokens = logits.topk(min(PAIRS, logits.shape[1]), dim=-1)
    levels = ((logits.logsumexp(dim=-1, keepdim=True) - top) * LEVELS_PER_NAT + 0.5).floor()
    is_listed = (levels <= MAX_LEVEL) & (tokens < PAIR_TOKENS)
    return torch.where(is_listed, tokens << 5 | levels.clamp_max(MAX_LEVEL).long(), -1).to(torch.int32)
