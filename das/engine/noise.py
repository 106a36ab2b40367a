"""Noise of the keyed sampler: a pure function of (request seed, position, token), the same bits on every device.

token = argmax_v( log p(v) + Gumbel(seed, t)[v] ). Nothing else enters: not the number of drafted tokens, the batch
order, or which engine runs the request. The CPU path is one pass in C (keyed.c), the CUDA path one pass in Triton
(keyed_triton.py); the torch path is their bit-equal twin for other devices and the oracle of the tests.
"""

import ctypes
import functools
from pathlib import Path

import numpy as np
import torch

from das.native import load_native

REJECTED = -1  # vLLM's mark of a position without a token in sampled_token_ids
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """The SplitMix64 finaliser, elementwise on uint64 (a bijection with full avalanche)."""
    x = x.astype(np.uint64, copy=True)
    with np.errstate(over="ignore"):
        x += _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_keys(seeds: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """64-bit key of each row from its request seed and the position of the token to be emitted, as two uint32 halves.

    seeds, positions: int64 [rows].
    """
    key = splitmix64(splitmix64(seeds.astype(np.int64).view(np.uint64)) ^ positions.astype(np.int64).view(np.uint64))
    return (key & np.uint64(0xFFFFFFFF)).astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)


@functools.cache
def _native() -> ctypes.CDLL:
    library = load_native(Path(__file__).with_name("keyed.c"))
    pointer, i64, u32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    library.keyed_argmax.argtypes = [pointer, i64, i64, i64, pointer, pointer, pointer, pointer]
    library.keyed_argmax.restype = None
    library.keyed_verify.argtypes = [pointer, i64, i64, i64, *[pointer] * 5, i64, pointer]
    library.keyed_verify.restype = None
    library.keyed_noise.argtypes = [u32, u32, i64, pointer]
    library.keyed_noise.restype = None
    return library


def native_noise(key0: int, key1: int, vocab: int) -> np.ndarray:
    """Gumbel noise of one row from the C core, float32 [vocab] (tests compare the torch twin with it)."""
    out = np.empty(vocab, np.float32)
    _native().keyed_noise(key0, key1, vocab, out.ctypes.data)
    return out


def _int64_address(values: np.ndarray) -> int:
    if values.dtype != np.int64 or not values.flags.c_contiguous:
        raise TypeError(f"seeds and positions must be contiguous int64 arrays, got {values.dtype}")
    return values.ctypes.data


def _mix32(h: torch.Tensor) -> torch.Tensor:
    """Integer hash of keyed.c on int32 tensors; multiplication wraps, shifts are made logical by the mask."""
    h = h ^ ((h >> 16) & 0xFFFF)
    h = h * 0x21F0AAAD
    h = h ^ ((h >> 15) & 0x1FFFF)
    h = h * (0xD35A2D97 - (1 << 32))
    return h ^ ((h >> 15) & 0x1FFFF)


def _soft_log(x: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int32)
    e = (bits - 0x3F3504F3) >> 23  # arithmetic shift: floor for x < sqrt(1/2) too
    m = (bits - (e << 23)).view(torch.float32)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = z * 0.22222222
    for coefficient in (0.2857142857, 0.4, 0.6666666667):
        p = (p + coefficient) * z
    p = p + 2.0
    return e.to(torch.float32) * 0.69314718056 + s * p


def torch_noise(key0: torch.Tensor, key1: torch.Tensor, vocab: int) -> torch.Tensor:
    """Gumbel noise, float32 [rows, vocab], from int32 keys [rows]; bit-equal to keyed.c."""
    token = torch.arange(vocab, dtype=torch.int32, device=key0.device) * (0x9E3779B1 - (1 << 32))
    x = _mix32(_mix32(token[None, :] + key0[:, None]) ^ key1[:, None])
    w = (((x >> 1) & 0x7FFFFFFF).to(torch.float32) + 0.5) * 4.656612873e-10
    w = w.clamp_max(0.99999994)
    u = 1.0 - w
    d = 1.0 - u
    e = torch.where(d > 0, -_soft_log(u) * w / d, w)
    return -_soft_log(e)


def keyed_argmax(
    logits: torch.Tensor, seeds: np.ndarray, positions: np.ndarray, greedy: np.ndarray | None = None
) -> torch.Tensor:
    """Sample one token per row.

    logits: float32 [rows, vocab], already divided by the temperature and masked (-inf = impossible).
    seeds, positions: int64 [rows]; greedy: bool [rows], rows that take the argmax without noise (None: no row).
    Returns int64 [rows].
    """
    if logits.device.type == "cpu":
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        rows, vocab = logits.shape
        tokens = torch.empty(rows, dtype=torch.int64)
        flags = None if greedy is None else np.ascontiguousarray(greedy, np.bool_)
        _native().keyed_argmax(
            logits.data_ptr(), rows, vocab, logits.stride(0), _int64_address(seeds), _int64_address(positions),
            None if flags is None else flags.ctypes.data, tokens.data_ptr(),
        )  # fmt: skip
        return tokens
    key0, key1 = row_keys(seeds, positions)
    if greedy is None:
        greedy = np.zeros(len(seeds), np.bool_)
    device0, device1 = (torch.from_numpy(key.view(np.int32)).to(logits.device) for key in (key0, key1))
    plain = torch.from_numpy(np.ascontiguousarray(greedy, np.bool_)).to(logits.device)
    if logits.device.type == "cuda":
        from das.engine.keyed_triton import keyed_argmax_triton

        return keyed_argmax_triton(logits, device0, device1, plain)
    return torch_argmax(logits, device0, device1, plain)


def keyed_verify(
    logits: torch.Tensor,
    drafted: np.ndarray,
    drafts: torch.Tensor,
    seeds: np.ndarray,
    positions: np.ndarray,
    greedy: np.ndarray | None = None,
) -> torch.Tensor:
    """Sample the rows of a drafted pass and accept each request's drafted tokens up to the first that differs.

    logits: float32 [sum(drafted + 1), vocab], a request's rows together: after its text, after each drafted token.
    drafted: int64 [requests]; drafts: int32 [sum(drafted)]; seeds, positions (of the first row): int64 [requests];
    greedy: bool [requests] or None. Returns int32 [requests, max(drafted) + 1], REJECTED after the last emitted token.
    """
    requests, width = len(drafted), max(drafted.tolist()) + 1
    if logits.device.type == "cpu":
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        emitted = torch.empty((requests, width), dtype=torch.int32)
        flags = None if greedy is None else np.ascontiguousarray(greedy, np.bool_)
        drafts = drafts.to(torch.int32)
        _native().keyed_verify(
            logits.data_ptr(), logits.shape[1], logits.stride(0), requests, _int64_address(drafted), drafts.data_ptr(),
            _int64_address(seeds), _int64_address(positions), None if flags is None else flags.ctypes.data, width,
            emitted.data_ptr(),
        )  # fmt: skip
        return emitted
    owner = np.repeat(np.arange(requests), drafted + 1)  # [rows]
    first_row = np.cumsum(drafted + 1) - (drafted + 1)  # [requests]
    offset = np.arange(len(owner)) - first_row[owner]
    tokens = keyed_argmax(logits, seeds[owner], positions[owner] + offset, None if greedy is None else greedy[owner])
    return accept(tokens, drafted, drafts)


def accept(tokens: torch.Tensor, drafted: np.ndarray, drafts: torch.Tensor) -> torch.Tensor:
    """Of the tokens sampled on all rows [sum(drafted + 1)], what keyed_verify emits; shapes as there."""
    place = np.arange(int(drafted.max()) + 1)[None, :]
    first_row = np.cumsum(drafted + 1) - (drafted + 1)
    rows = torch.from_numpy(first_row[:, None] + np.minimum(place, drafted[:, None]))  # [requests, width]
    sampled = tokens[rows.to(tokens.device)].to(torch.int32)
    padded = torch.full((sampled.numel(),), REJECTED, dtype=torch.int32, device=tokens.device)
    padded[torch.from_numpy((place < drafted[:, None]).reshape(-1).nonzero()[0]).to(tokens.device)] = drafts.to(
        torch.int32
    )
    # A token is emitted if all before it were the drafted ones.
    matched = (sampled == padded.view(sampled.shape)).cumprod(dim=1)
    sampled[:, 1:].masked_fill_(matched[:, :-1] == 0, REJECTED)
    return sampled


def torch_argmax(logits: torch.Tensor, key0: torch.Tensor, key1: torch.Tensor, greedy: torch.Tensor) -> torch.Tensor:
    """keyed_argmax in plain torch, on any device: key0, key1 int32 [rows]; greedy bool [rows]."""
    noise = torch_noise(key0, key1, logits.shape[1])
    return (logits + noise.masked_fill_(greedy[:, None], 0.0)).argmax(dim=-1)
