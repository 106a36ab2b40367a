"""Kernels ahead of a pass that was launched before its drafts were known.

The device waits for the drafts in front of a number in pinned memory. Then it decides how many tokens of each request
it verifies: those likeliest to be accepted, and exactly as many together as the pass has rows for. This module is
imported only for CUDA.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["number", "count", "width", "stride"])
def wait_for_drafts(  # type: ignore[no-untyped-def]
    numbers, number, drafts, indices, out, count, width, stride, PATIENCE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Wait until numbers[0] is at least `number`, then copy drafts, [count, width], to the rows `indices` of out. One
    program. Sets numbers[1] to `number` if that was in vain."""
    written = tl.load(numbers, volatile=True)
    looks = 0
    while (written < number) & (looks < PATIENCE):
        written = tl.load(numbers, volatile=True)
        looks += 1
    if written < number:
        tl.store(numbers + 1, number)
    at = tl.arange(0, BLOCK)
    is_inside = at < count * width
    tokens = tl.load(drafts + at, mask=is_inside, other=0, volatile=True)
    rows = tl.load(indices + at // width, mask=is_inside, other=0)
    tl.store(out + rows * stride + at % width, tokens, mask=is_inside)


@triton.jit(do_not_specialize=["requests", "longest", "total"])
def admit(  # type: ignore[no-untyped-def]
    probs, counts, inputs, requests, longest, total, starts, ROWS: tl.constexpr, LONGEST: tl.constexpr
):  # fmt: skip
    """Choose `total` tokens of the drafts of a pass. One program.

    probs: float64 [rows, longest], each behind those before it. counts: int64 [rows], of drafted tokens. inputs: int32
    [2, requests], the row of each request there, and what it can verify; together at least `total`. Writes
    where the rows of each request begin, and their number, int32 [requests + 1]: `total` and one for each request,
    whatever counts and probs are.
    """
    row = tl.arange(0, ROWS)
    here = row < requests
    able = tl.load(inputs + requests + row, mask=here, other=0).to(tl.int64)
    place = tl.load(inputs + row, mask=here, other=0)
    drafted = tl.load(counts + place, mask=here, other=0, volatile=True)
    drafted = tl.maximum(tl.minimum(drafted, able), 0)
    # A gain's bits are its order, because gains are not negative: the key of no token is -1.
    column = tl.arange(0, LONGEST)
    p = tl.load(probs + place[:, None] * longest + column[None, :],
                mask=here[:, None] & (column[None, :] < longest), other=0.0, volatile=True)  # fmt: skip
    gain = tl.full((ROWS,), 1.0, tl.float64)
    key = tl.full((ROWS, LONGEST), -1, tl.int64)
    for k in tl.static_range(LONGEST):
        is_k = column[None, :] == k
        gain = gain * tl.sum(tl.where(is_k, p, 0.0), 1)
        bits = tl.maximum(gain.to(tl.int64, bitcast=True), 0)
        key = tl.where(is_k & (drafted[:, None] > k), bits[:, None], key)
    have = tl.minimum(tl.sum(drafted, 0), total)
    # The least key above which at most `have` tokens lie; those at it fill up, the first requests first.
    low, high = have * 0, have * 0 + 0x7FFFFFFFFFFFFFFF
    for _ in range(63):
        middle = low + (high - low) // 2
        above = tl.sum(tl.sum((key > middle).to(tl.int64), 1), 0)
        high = tl.where(above <= have, middle, high)
        low = tl.where(above <= have, low, middle + 1)
    chosen = tl.sum((key > high).to(tl.int64), 1)
    equal = tl.sum(((key == high) & (key >= 0)).to(tl.int64), 1)
    left = have - tl.sum(chosen, 0)
    chosen += tl.minimum(tl.maximum(left - (tl.cumsum(equal, 0) - equal), 0), equal)
    free = tl.where(here, able - chosen, 0)
    rest = total - tl.sum(chosen, 0)
    chosen += tl.minimum(tl.maximum(rest - (tl.cumsum(free, 0) - free), 0), free)
    tl.store(starts, 0)
    tl.store(starts + 1 + row, tl.cumsum(tl.where(here, chosen + 1, 0), 0).to(tl.int32), mask=here)
