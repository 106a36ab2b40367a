"""Keyed sampling as Triton kernels: one pass over the vocabulary. The noise is made in registers and never stored.
A second pass finds what drafters remember of each row's distribution.

The arithmetic repeats das/noise.h operation for operation: IEEE division (div_rn) and no fused multiply-add
(enable_fp_fusion=False). The tokens therefore equal those of the C and torch implementations. This module is imported
only for CUDA tensors.
"""

import torch
import triton
import triton.language as tl

from das.drafter.distributions import LEVELS_PER_NAT, MAX_LEVEL, PAIR_TOKENS, PAIRS

BLOCK = 1024  # tokens of a row that a program holds in registers at once
SPLIT = 16384  # tokens of a row per program: 10 programs share a row of 152k tokens, so that few rows fill a GPU too


@triton.jit
def _mix32(h):
    h = h ^ (h >> 16)
    h = h * 0x21F0AAAD
    h = h ^ (h >> 15)
    h = h * 0xD35A2D97
    return h ^ (h >> 15)


@triton.jit
def _soft_log(x):
    bits = x.to(tl.int32, bitcast=True)
    e = (bits - 0x3F3504F3) >> 23
    m = (bits - (e << 23)).to(tl.float32, bitcast=True)
    s = tl.div_rn(m - 1.0, m + 1.0)
    z = s * s
    p = z * 0.22222222
    p = (p + 0.2857142857) * z
    p = (p + 0.4) * z
    p = (p + 0.6666666667) * z
    p = p + 2.0
    return e.to(tl.float32) * 0.69314718056 + s * p


@triton.jit
def _gumbel(key0, key1, token):
    x = _mix32(_mix32(token.to(tl.uint32) * 0x9E3779B1 + key0) ^ key1)
    w = ((x >> 1).to(tl.int32).to(tl.float32) + 0.5) * 4.656612873e-10
    w = tl.minimum(w, 0.99999994)
    u = 1.0 - w
    d = 1.0 - u
    e = tl.where(d > 0.0, tl.div_rn(-_soft_log(u) * w, tl.where(d > 0.0, d, 1.0)), w)
    return -_soft_log(e)


@triton.jit
def split_argmax(
    logits, stride, vocab, keys0, keys1, greedy, best_scores, best_tokens,
    SPLIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Find the best score of each (row, split) and the first token that has it. Grid: rows x splits.

    logits: float32 [rows, vocab], row stride in elements. keys0, keys1: int32 [rows]. greedy: int8 [rows].
    Writes best_scores, float32 [rows, splits], and best_tokens, int32 [rows, splits].
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    key0 = tl.load(keys0 + row).to(tl.uint32, bitcast=True)
    key1 = tl.load(keys1 + row).to(tl.uint32, bitcast=True)
    is_greedy = tl.load(greedy + row) != 0
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    top_token = tl.full((BLOCK,), 0, tl.int32) + split * SPLIT
    for start in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        score = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf"))
        if not is_greedy:
            score = score + _gumbel(key0, key1, token)
        better = score > top
        top = tl.where(better, score, top)
        top_token = tl.where(better, token, top_token)
    highest = tl.max(top, axis=0)
    cell = row * tl.num_programs(1) + split
    tl.store(best_scores + cell, highest)
    tl.store(best_tokens + cell, tl.min(tl.where(top == highest, top_token, 0x7FFFFFFF), axis=0))


@triton.jit
def join_splits(best_scores, best_tokens, tokens, splits, WIDTH: tl.constexpr):
    """Choose, over a row's splits, the first token that has the best score. Grid: rows. Writes tokens, int64 [rows]."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, WIDTH)
    score = tl.load(best_scores + row * splits + split, mask=split < splits, other=float("-inf"))
    token = tl.load(best_tokens + row * splits + split, mask=split < splits, other=0x7FFFFFFF)
    tl.store(tokens + row, tl.min(tl.where(score == tl.max(score, axis=0), token, 0x7FFFFFFF), axis=0).to(tl.int64))


def keyed_argmax_triton(
    logits: torch.Tensor, key0: torch.Tensor, key1: torch.Tensor, greedy: torch.Tensor
) -> torch.Tensor:
    """Sample one token per row, with the same result as noise.keyed_argmax on a CPU.

    logits: float32 [rows, vocab]. key0, key1: int32 [rows]. greedy: [rows], nonzero or True for a greedy row.
    Returns token ids, int64 [rows].
    """
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    splits = triton.cdiv(vocab, SPLIT)
    best_scores = torch.empty((rows, splits), dtype=torch.float32, device=logits.device)
    best_tokens = torch.empty((rows, splits), dtype=torch.int32, device=logits.device)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    split_argmax[(rows, splits)](
        logits, logits.stride(0), vocab, key0, key1, greedy.to(torch.int8), best_scores, best_tokens,
        SPLIT=SPLIT, BLOCK=BLOCK, enable_fp_fusion=False,
    )  # fmt: skip
    join_splits[(rows,)](
        best_scores, best_tokens, tokens, splits, WIDTH=triton.next_power_of_2(splits), enable_fp_fusion=False
    )
    return tokens


@triton.jit
def split_likeliest(
    logits, stride, vocab, tops, tokens, sums, SPLIT: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """Find the four likeliest tokens of each (row, split), and the sum of exp(logit - highest logit) over the split.

    Grid: rows x splits. logits: [rows, vocab] of any type, row stride in elements. Writes tops, float32, and tokens,
    int32, [rows, splits, 4], likeliest first, and sums, float32 [rows, splits].
    """
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    # Each lane keeps the best four of its tokens, a to d, and the sum relative to its best.
    lowest = tl.full((BLOCK,), float("-inf"), tl.float32)
    nothing = tl.full((BLOCK,), 0x7FFFFFFF, tl.int32)
    a, b, c, d = lowest, lowest, lowest, lowest
    token_a, token_b, token_c, token_d = nothing, nothing, nothing, nothing
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * stride + token, mask=token < vocab, other=float("-inf")).to(tl.float32)
        over_a, over_b, over_c, over_d = x > a, x > b, x > c, x > d
        ratio = tl.where(x == float("-inf"), 0.0, tl.exp(-tl.abs(x - a)))  # of the lesser to the greater
        total = tl.where(over_a, total * ratio + 1.0, total + ratio)
        d, token_d = (
            tl.where(over_c, c, tl.where(over_d, x, d)),
            tl.where(over_c, token_c, tl.where(over_d, token, token_d)),
        )
        c, token_c = (
            tl.where(over_b, b, tl.where(over_c, x, c)),
            tl.where(over_b, token_b, tl.where(over_c, token, token_c)),
        )
        b, token_b = (
            tl.where(over_a, a, tl.where(over_b, x, b)),
            tl.where(over_a, token_a, tl.where(over_b, token, token_b)),
        )
        a, token_a = tl.where(over_a, x, a), tl.where(over_a, token, token_a)
    cell = row * tl.num_programs(1) + split
    highest = tl.max(a, axis=0)
    tl.store(sums + cell, tl.sum(tl.where(a == float("-inf"), 0.0, total * tl.exp(a - highest)), axis=0))
    for pair in tl.static_range(PAIRS):
        best = tl.max(a, axis=0)
        best_token = tl.min(tl.where(a == best, token_a, 0x7FFFFFFF), axis=0)
        tl.store(tops + cell * PAIRS + pair, best)
        tl.store(tokens + cell * PAIRS + pair, best_token)
        taken = token_a == best_token
        a, token_a = tl.where(taken, b, a), tl.where(taken, token_b, token_a)
        b, token_b = tl.where(taken, c, b), tl.where(taken, token_c, token_b)
        c, token_c = tl.where(taken, d, c), tl.where(taken, token_d, token_c)
        d, token_d = tl.where(taken, float("-inf"), d), tl.where(taken, 0x7FFFFFFF, token_d)


@triton.jit
def join_likeliest(
    tops, tokens, sums, pairs, splits, WIDTH: tl.constexpr, PAIRS: tl.constexpr, LEVELS: tl.constexpr,
    MAX_LEVEL: tl.constexpr, PAIR_TOKENS: tl.constexpr,
):  # fmt: skip
    """Choose the four likeliest tokens of all splits of a row, and pack them with their levels. Grid: rows. Writes
    pairs, int32 [rows, 4]; -1: none."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, WIDTH)
    highest = tl.load(tops + (row * splits + split) * PAIRS, mask=split < splits, other=float("-inf"))
    total = tl.load(sums + row * splits + split, mask=split < splits, other=0.0)
    most = tl.max(highest, axis=0)
    total = tl.sum(tl.where(highest == float("-inf"), 0.0, total * tl.exp(highest - most)), axis=0)
    normalizer = most + tl.log(total)
    place = tl.arange(0, WIDTH * PAIRS)
    top = tl.load(tops + row * splits * PAIRS + place, mask=place < splits * PAIRS, other=float("-inf"))
    token = tl.load(tokens + row * splits * PAIRS + place, mask=place < splits * PAIRS, other=0x7FFFFFFF)
    for pair in tl.static_range(PAIRS):
        best = tl.max(top, axis=0)
        best_token = tl.min(tl.where(top == best, token, 0x7FFFFFFF), axis=0)
        level = tl.floor((normalizer - best) * LEVELS + 0.5)
        is_listed = (best > float("-inf")) & (level <= MAX_LEVEL) & (best_token < PAIR_TOKENS)
        word = best_token * 32 + tl.where(is_listed, level, 0.0).to(tl.int32)
        tl.store(pairs + row * PAIRS + pair, tl.where(is_listed, word, -1))
        top = tl.where(token == best_token, float("-inf"), top)


def likeliest_triton(logits: torch.Tensor) -> torch.Tensor:
    """Summarize the distribution of each row as noise.likeliest does on a CPU, without a copy of the logits.

    logits: [rows, vocab], of any type. Returns the pairs, int32 [rows, PAIRS].
    """
    rows, vocab = logits.shape
    pairs = torch.empty((rows, PAIRS), dtype=torch.int32, device=logits.device)
    splits = triton.cdiv(vocab, SPLIT)
    tops = torch.empty((rows, splits, PAIRS), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((rows, splits, PAIRS), dtype=torch.int32, device=logits.device)
    sums = torch.empty((rows, splits), dtype=torch.float32, device=logits.device)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    split_likeliest[(rows, splits)](
        logits, logits.stride(0), vocab, tops, tokens, sums, SPLIT=SPLIT, BLOCK=BLOCK, PAIRS=PAIRS
    )
    join_likeliest[(rows,)](
        tops, tokens, sums, pairs, splits, WIDTH=triton.next_power_of_2(splits), PAIRS=PAIRS, LEVELS=LEVELS_PER_NAT,
        MAX_LEVEL=MAX_LEVEL, PAIR_TOKENS=PAIR_TOKENS,
    )  # fmt: skip
    return pairs
