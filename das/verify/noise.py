"""Noise of the keyed sampler: a pure function of (request seed, position, token), with the same bits on every device.

    token = argmax_v( log p(v) + Gumbel(seed, t)[v] )        where t is the token's position in the response

Nothing else enters: not the number of drafted tokens, not the batch order, not the engine that runs the request.

A pass returns one row of logits for the next token of each request, and one more row after each drafted token. Every
row is treated as an ordinary decode row: the same masks, the same temperature, the same noise(seed, position). A
drafted token is accepted if and only if it equals the token sampled on the row before its own. The emitted tokens
therefore never depend on the draft (exactness level 2, docs/exactness.md).

There are two implementations: one pass in C for the CPU (keyed.c), and one pass in Triton for CUDA (keyed_triton.py).
Tests compare both with one in torch (tests/made_noise.py).
"""

import ctypes
import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from das.drafter.distributions import PAIRS, unknown
from das.general.native import load_native

REJECTED = -1  # what vLLM expects in sampled_token_ids where no token was emitted
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Apply the finaliser of SplitMix64 to each uint64: a bijection in which each input bit affects all output bits."""
    x = x.astype(np.uint64, copy=True)
    with np.errstate(over="ignore"):
        x += _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def device_keys(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the 64-bit noise key of each row, as noise_key of das/noise.h does, on the device that has these tensors.

    seeds, positions: of the row's request, and of the token to be emitted, int64 [rows]. Returns the lower and the
    upper half of the keys, int32 [rows] each.
    """
    key = _splitmix64(_splitmix64(seeds) ^ positions)
    return key.to(torch.int32), (key >> 32).to(torch.int32)


def _splitmix64(x: torch.Tensor) -> torch.Tensor:
    """`splitmix64` of int64: torch has no arithmetic for unsigned numbers of 64 bits."""
    x = x + int(_GOLDEN.view(np.int64))
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ _behind(x, bits)) * (factor - 2**64)
    return x ^ _behind(x, 31)


def _behind(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x >> bits without the sign."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


@functools.cache
def _native() -> ctypes.CDLL:
    """Returns the compiled keyed.c, with the argument types of its functions declared."""
    library = load_native(Path(__file__).with_name("keyed.c"))
    pointer, i64, u32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint32
    for name, types in {
        "keyed_verify": [pointer, i64, i64, i64, *[pointer] * 5, i64, pointer],
        "keyed_pairs": [pointer, i64, i64, i64, pointer, pointer],
        "keyed_noise": [u32, u32, i64, pointer],
    }.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
    return library


def _call(name: str, *arguments: Any) -> None:
    """Call a function of keyed.c. It gets the addresses of arrays and tensors, and other arguments as they are."""
    addresses = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            argument = argument.data_ptr()
        elif isinstance(argument, np.ndarray):
            argument = argument.ctypes.data
        addresses.append(argument)
    getattr(_native(), name)(*addresses)


def _int64(values: np.ndarray) -> np.ndarray:
    """Returns the array as contiguous int64, which C can read."""
    return np.ascontiguousarray(values, np.int64)


def _flags(greedy: np.ndarray | None) -> np.ndarray | None:
    """Returns the array as contiguous bools, which C can read; None stays None."""
    return None if greedy is None else np.ascontiguousarray(greedy, np.bool_)


def _in_rows(logits: torch.Tensor) -> torch.Tensor:
    """Returns the logits in a form that C can read: the values of a row lie together."""
    return logits if logits.stride(1) == 1 else logits.contiguous()


def keyed_argmax(
    logits: torch.Tensor, seeds: np.ndarray, positions: np.ndarray, greedy: np.ndarray | None = None
) -> torch.Tensor:
    """Sample one token per row.

    logits: float32 [rows, vocab], already divided by the temperature and masked (-inf: impossible token).
    seeds, positions: int64 [rows]. greedy: bool [rows], the rows that take the argmax without noise; None means no row.
    Returns token ids, int64 [rows].
    """
    if logits.device.type == "cpu":
        undrafted, no_tokens = np.zeros(len(logits), np.int64), torch.empty(0, dtype=torch.int32)
        return keyed_verify(logits, undrafted, no_tokens, seeds, positions, greedy, width=1)[:, 0].to(torch.int64)
    flags = np.zeros(len(seeds), np.int64) if greedy is None else greedy
    there = torch.from_numpy(np.stack((seeds, positions, flags))).pin_memory().to(logits.device, non_blocking=True)
    return device_argmax(logits, *there)


def device_argmax(
    logits: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, greedy: torch.Tensor
) -> torch.Tensor:
    """Sample one token per row on a GPU, as keyed_argmax does, by tensors that are there. Returns token ids, int64
    [rows].

    seeds, positions: int64 [rows]. greedy: [rows], nonzero or True for a greedy row. For the rest see keyed_argmax.
    """
    from das.verify.keyed_triton import keyed_argmax_triton

    return keyed_argmax_triton(logits, *device_keys(seeds, positions), greedy)


def keyed_verify(
    logits: torch.Tensor,
    num_drafted: np.ndarray,
    draft_tokens: torch.Tensor,
    seeds: np.ndarray,
    positions: np.ndarray,
    greedy: np.ndarray | None,
    width: int,
) -> torch.Tensor:
    """Sample the rows of a pass, and accept each request's drafted tokens up to the first that differs.

    This is for the CPU. On other devices `draw_on_device` does the same work.

    logits: float32 [sum(num_drafted + 1), vocab]. A request's rows lie together: first the row after its text, then one
    row after each of its drafted tokens.
    num_drafted: int64 [requests]. draft_tokens: int32 [sum(num_drafted)].
    seeds: int64 [requests]. positions: int64 [requests], of each request's first row. greedy: bool [requests] or None.
    width: the most tokens that a request may emit, at least max(num_drafted) + 1; 1 if nobody drafted.
    Returns the emitted token ids, int32 [requests, width], with REJECTED after the last one.
    """
    logits, emitted = _in_rows(logits), torch.empty((len(num_drafted), width), dtype=torch.int32)
    _call(
        "keyed_verify", logits, logits.shape[1], logits.stride(0), len(num_drafted), _int64(num_drafted),
        draft_tokens.to(torch.int32), _int64(seeds), _int64(positions), _flags(greedy), width, emitted,
    )  # fmt: skip
    return emitted


def draw_on_device(
    logits: torch.Tensor,
    inputs: torch.Tensor,
    starts: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    greedy: torch.Tensor,
    width: int,
) -> torch.Tensor:
    """Does what keyed_verify does on any device, which alone may know how many drafted tokens each
    request has. All rows are sampled.

    inputs: the input token of each row: behind a request's first row, its drafted tokens. starts: where the rows of
    each request begin, and the number of rows, [requests + 1]. seeds, positions: of each row, int64. greedy: bool
    [rows]. width: the most tokens that a request may emit; 1 if nobody drafted. For the rest and the result see
    keyed_verify.
    """
    if logits.device.type == "cpu":
        tokens = keyed_argmax(logits, seeds.numpy(), positions.numpy(), greedy.numpy()).to(torch.int32)
    else:
        tokens = device_argmax(logits, seeds, positions, greedy).to(torch.int32)
    if width == 1:
        return tokens[:, None]
    # The drafted token after each row; a request's last row has none, and fills the columns behind it.
    following = inputs.to(torch.int32).roll(-1).index_fill_(0, starts[1:].long() - 1, REJECTED)
    column = torch.arange(width, device=logits.device)
    cells = starts[:-1, None].long() + torch.minimum(column, starts.diff()[:, None] - 1)
    sampled = tokens[cells]
    # A token is emitted if every token before it equals the drafted one.
    matched = (sampled == following[cells]).cumprod(dim=1)
    sampled[:, 1:].masked_fill_(matched[:, :-1] == 0, REJECTED)
    return sampled


def used_rows(emitted: torch.Tensor, num_drafted: np.ndarray) -> np.ndarray:
    """Returns the rows of logits on which tokens were emitted, int64. emitted: these, with REJECTED behind them."""
    first_row = np.cumsum(num_drafted + 1) - (num_drafted + 1)
    return (first_row[:, None] + np.arange(emitted.shape[1]))[emitted.numpy() != REJECTED]


def likeliest(logits: torch.Tensor, rows: np.ndarray) -> np.ndarray:
    """Summarize the distributions of rows of logits in the form that drafters remember (das.drafter.distributions).

    logits: float32 [rows, vocab]. rows: indices of the rows that are needed, int64; a GPU computes all rows. Returns
    uint32 [rows, PAIRS]. A GPU copies it without waiting: read it when the tokens of the pass are on the host.
    """
    if logits.device.type == "cpu":
        logits, pairs = _in_rows(logits), unknown(len(logits))
        _call("keyed_pairs", logits, logits.shape[1], logits.stride(0), len(rows), _int64(rows), pairs)
        return pairs
    from das.verify.keyed_triton import likeliest_triton

    on_host = torch.empty((len(logits), PAIRS), dtype=torch.int32, pin_memory=True)
    on_host.copy_(likeliest_triton(logits), non_blocking=True)
    return on_host.numpy().view(np.uint32)
