"""numpy in place of the Triton kernels of vLLM's second model runner, for CPUs.

Each function has the name of its kernel without the underscore before it and "_kernel" behind it. It gets the launch's
grid and the kernel's arguments, and writes what the kernel writes, bit for bit (tests/engine/runners/second compares
them in Triton's interpreter). One kernel differs in its last bits: topk_log_softmax computes log-probs as the first
runner does, so that both runners report the same ones. Arguments that are not used are sizes of a GPU's blocks.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Grid = tuple[int, ...]
Tensor = torch.Tensor


def _runs(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay out `counts[i]` cells of each i one after the other. Returns i and the place within i, for each cell."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def _at(address: Any, count: int) -> np.ndarray:
    """Returns the `count` int32 at an address of memory."""
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(int(address)))


# ---- what a pass reads and writes beside the model ----


def apply_write(
    grid: Grid, out: Tensor, strides: Any, indices: Tensor, starts: Tensor, contents: Tensor, cu_lens: Tensor,
    groups: Tensor | None, BLOCK_SIZE: int, MULTI_GROUP: bool,
) -> None:  # fmt: skip
    begin, values = 0, contents.numpy()
    for i, end in enumerate(cu_lens[: grid[0]].tolist()):
        length = end - begin
        if MULTI_GROUP:
            assert groups is not None
            group = int(groups[i])
            address = int(out[group]) + 4 * (int(indices[i]) * int(strides[group]) + int(starts[i]))
            _at(address, length)[:] = values[begin:end]
        else:
            at = int(indices[i]) * strides + int(starts[i])
            out.numpy().reshape(-1)[at : at + length] = values[begin:end]
        begin = end


def gather_block_tables(
    grid: Grid, idx: Tensor, sources: Tensor, targets: Tensor, strides: Tensor, num_blocks: Tensor, stride: int,
    num_reqs: int, BLOCK_SIZE: int,
) -> None:  # fmt: skip
    for group in range(grid[0]):
        width = int(strides[group])
        source = _at(sources[group], width * num_blocks.shape[1]).reshape(-1, width)
        target = _at(targets[group], width * grid[1]).reshape(-1, width)
        counts = num_blocks[group].tolist()
        for row, request in enumerate(idx[:num_reqs].tolist()):
            target[row, : counts[request]] = source[request, : counts[request]]
        target[num_reqs:] = 0


def compute_slot_mappings(
    grid: Grid, max_num_tokens: int, idx: Tensor, begins: Tensor, pos: Tensor, tables: Tensor, strides: Tensor,
    block_sizes: Tensor, enabled: Tensor, sharded: Tensor, slots: Tensor, slots_stride: int, rank: int, CP_SIZE: int,
    CP_INTERLEAVE: int, PAD_ID: int, TRITON_BLOCK_SIZE: int,
) -> None:  # fmt: skip
    assert CP_SIZE == 1
    assert bool(enabled.all())
    starts = begins[: grid[1]].numpy()
    total = int(starts[-1])
    owner, positions = np.repeat(idx.numpy(), np.diff(starts)), pos[:total].numpy()
    for group in range(grid[0]):
        width, size = int(strides[group]), int(block_sizes[group])
        table = _at(tables[group], width * (int(owner.max(initial=0)) + 1)).reshape(-1, width)
        out = slots[group].numpy()
        out[:total] = table[owner, positions // size].astype(np.int64) * size + positions % size
        out[total:max_num_tokens] = PAD_ID


def prepare_prefill_inputs(
    grid: Grid, ids: Tensor, following: Tensor, following_stride: int, num_lookahead: int, idx: Tensor, begins: Tensor,
    texts: Tensor, texts_stride: int, prefill: Tensor, computed: Tensor, BLOCK_SIZE: int, LOOKAHEAD_BLOCK: int,
) -> None:  # fmt: skip
    out, tokens, starts, ahead = ids.numpy(), texts.numpy(), begins.tolist(), following.numpy()
    for row, request in enumerate(idx.tolist()):
        done, length = int(computed[request]), int(prefill[request])
        if done >= length:
            continue
        end = done + starts[row + 1] - starts[row]
        out[starts[row] : starts[row + 1]] = tokens[request, done:end]
        coming = tokens[request, end : min(end + num_lookahead, length)]
        ahead[:, request] = 0
        ahead[: len(coming), request] = coming


def prepare_pos_seq_lens(
    grid: Grid, pos: Tensor, lengths: Tensor, idx: Tensor, begins: Tensor, computed: Tensor, max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:  # fmt: skip
    num_reqs = grid[0] - 1
    starts, done = begins[: num_reqs + 1].numpy(), computed.numpy()[idx.numpy()]
    counts = np.diff(starts)
    lengths.numpy()[:num_reqs] = done + counts
    lengths.numpy()[num_reqs:max_num_reqs] = 0
    owner, place = _runs(counts)
    pos.numpy()[starts[0] : starts[-1]] = done[owner] + place


def combine_sampled_and_draft_tokens(
    grid: Grid, ids: Tensor, idx: Tensor, last_sampled: Tensor, begins: Tensor, lengths: Tensor, prefill: Tensor,
    drafts: Tensor, drafts_stride: int, cu_logits: Tensor, logits_indices: Tensor, BLOCK_SIZE: int,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:  # fmt: skip
    out, request, new = ids.numpy(), idx.numpy(), NUM_NEW_SAMPLED_TOKENS
    ends, counts = begins.numpy()[1 : grid[0] + 1], np.diff(cu_logits.numpy())
    owner, place = _runs(counts)
    logits_indices.numpy()[:] = (ends - counts)[owner] + place
    seen, own_prefill = lengths.numpy()[: grid[0]], prefill.numpy()[request]
    decoding = seen > own_prefill
    if new:
        begun = decoding & (seen - counts >= own_prefill)
        out[(ends - counts)[begun]] = last_sampled.numpy().reshape(-1)[request[begun]]
    drafted = np.where(decoding, counts - new, 0)
    owner, place = _runs(drafted)
    out[(ends - drafted)[owner] + place] = drafts.numpy()[request[owner], place]


def get_num_sampled_and_rejected(
    grid: Grid, sampled: Tensor, rejected: Tensor, lengths: Tensor, cu_logits: Tensor, idx: Tensor, prefill: Tensor
) -> None:
    unfinished = lengths.numpy()[: grid[0]] < prefill.numpy()[idx.numpy()]
    sampled.numpy()[unfinished] = 0
    rejected.numpy()[:] = np.where(unfinished, 0, np.diff(cu_logits.numpy()) - sampled.numpy())


def post_update(
    grid: Grid, idx: Tensor, computed: Tensor, last_sampled: Tensor, counts: Tensor | None, counts_stride: int,
    tokens: Tensor, tokens_stride: int, sampled: Tensor, rejected: Tensor, begins: Tensor | None, texts: Tensor,
    texts_stride: int, total: Tensor, num_warps: int = 1,
) -> None:  # fmt: skip
    is_real = idx.numpy() >= 0
    request, num_new = idx.numpy()[is_real], sampled.numpy()[is_real].astype(np.int64)
    own, lengths = tokens.numpy()[is_real], total.numpy()
    emitting = num_new > 0
    last_sampled.numpy().reshape(-1)[request[emitting]] = own[emitting, num_new[emitting] - 1]
    owner, place = _runs(num_new)
    new = own[owner, place]
    texts.numpy()[request[owner], lengths[request][owner] + place] = new
    if counts is not None:
        np.add.at(counts.numpy(), (request[owner], new), 1)
    lengths[request] += num_new.astype(lengths.dtype)
    queries = 0 if begins is None else np.diff(begins.numpy()[: grid[0] + 1])[is_real]
    computed.numpy()[request] += queries - rejected.numpy()[is_real]


def expand_idx_mapping(
    grid: Grid, idx: Tensor, expanded: Tensor, local: Tensor, cu_logits: Tensor, BLOCK_SIZE: int
) -> None:
    owner, place = _runs(np.diff(cu_logits.numpy()))
    expanded.numpy()[: len(owner)], local.numpy()[: len(owner)] = idx.numpy()[owner], place


def gather_draft_sampled(
    grid: Grid, drafted: Tensor, pos_out: Tensor, ids: Tensor, positions: Tensor, rows: Tensor, expanded: Tensor,
    local: Tensor, prefill: Tensor, num_logits: int, BLOCK_SIZE: int,
) -> None:  # fmt: skip
    row, place = rows.numpy(), local.numpy()
    pos = positions.numpy()[row]
    placeholder = (place > 0) & (pos - place < prefill.numpy()[expanded.numpy()])
    drafted.numpy()[:], pos_out.numpy()[:] = np.where(placeholder, -1, ids.numpy()[row]), pos


# ---- sampling parameters and log-probs ----


def temperature(
    grid: Grid, logits: Tensor, stride: int, expanded: Tensor, temperatures: Tensor, vocab: int, BLOCK_SIZE: int
) -> None:
    by = temperatures.numpy()[expanded.numpy()]
    rows = (by != 0) & (by != 1)
    logits.numpy()[rows] /= by[rows, None]


def min_p(
    grid: Grid, logits: Tensor, stride: int, expanded: Tensor, values: Tensor, vocab: int, BLOCK_SIZE: int
) -> None:
    by = values.numpy()[expanded.numpy()]
    rows = by != 0
    own = logits.numpy()[rows]
    own[own < own.max(axis=1, keepdims=True) + np.log(by[rows, None])] = -np.inf
    logits.numpy()[rows] = own


def bias(
    grid: Grid, logits: Tensor, stride: int, vocab: int, expanded: Tensor, num_allowed: Tensor, allowed: Tensor,
    allowed_stride: int, num_biases: Tensor, biased: Tensor, biased_stride: int, biases: Tensor, biases_stride: int,
    pos: Tensor, min_lengths: Tensor, num_stops: Tensor, restored: Tensor, stops: Tensor, stops_stride: int,
    BLOCK_SIZE: int, LOGITS_BLOCK_SIZE: int, CHECK_ALL_MASKED_ROWS: bool,
) -> None:  # fmt: skip
    for own, request, position in zip(logits.numpy(), expanded.tolist(), pos.tolist(), strict=True):
        if count := int(num_allowed[request]):
            tokens = allowed[request, :count].numpy()
            kept = own[tokens]
            own[:] = -np.inf
            own[tokens] = kept
        if count := int(num_biases[request]):
            own[biased[request, :count].numpy()] += biases[request, :count].numpy()
        if (count := int(num_stops[request])) and position + 1 < int(min_lengths[request]):
            tokens = stops[request, :count].numpy()
            kept = own[tokens]
            own[tokens] = -np.inf
            if CHECK_ALL_MASKED_ROWS and int(restored[request]) and np.isneginf(own).all():
                own[tokens] = kept


def bad_words(
    grid: Grid, logits: Tensor, stride: int, expanded: Tensor, words: Tensor, words_stride: int, offsets: Tensor,
    offsets_stride: int, num_words: Tensor, texts: Tensor, texts_stride: int, prompt: Tensor, total: Tensor,
    ids: Tensor, local: Tensor,
) -> None:  # fmt: skip
    inputs = ids.numpy()
    for row, (request, place) in enumerate(zip(expanded.tolist(), local.tolist(), strict=True)):
        if not (count := int(num_words[request])):
            continue
        drafted = inputs[row - place + 1 : row + 1]
        text = np.concatenate((texts[request, int(prompt[request]) : int(total[request])].numpy(), drafted)).tolist()
        bounds, tokens = offsets[request, : count + 1].tolist(), words[request].tolist()
        for start, end in itertools.pairwise(bounds):
            *before, last = tokens[start:end]
            if text[len(text) - len(before) :] == before:
                logits[row, last] = -np.inf


def bincount(
    grid: Grid, idx: Tensor, texts: Tensor, texts_stride: int, prompt: Tensor, prefill: Tensor, mask: Tensor,
    mask_stride: int, counts: Tensor, counts_stride: int, BLOCK_SIZE: int,
) -> None:  # fmt: skip
    for request in idx.tolist():
        own, end = int(prompt[request]), int(prefill[request])
        tokens = texts[request, :own].numpy()
        bits = (np.uint32(1) << (tokens % 32).astype(np.uint32)).view(np.int32)
        np.bitwise_or.at(mask[request].numpy(), tokens // 32, bits)
        np.add.at(counts[request].numpy(), texts[request, own:end].numpy(), 1)


def penalties(
    grid: Grid, logits: Tensor, stride: int, expanded: Tensor, ids: Tensor, local: Tensor, repetition: Tensor,
    frequency: Tensor, presence: Tensor, mask: Tensor, mask_stride: int, counts: Tensor, counts_stride: int,
    vocab: int, BLOCK_SIZE: int,
) -> None:  # fmt: skip
    values, inputs, one = logits.numpy(), ids.numpy(), np.float32(1)
    for row, (request, place) in enumerate(zip(expanded.tolist(), local.tolist(), strict=True)):
        repeat, often, ever = (np.float32(each[request]) for each in (repetition, frequency, presence))
        if (repeat, often, ever) == (1, 0, 0):
            continue
        seen, own = counts[request].numpy().copy(), values[row]
        np.add.at(seen, inputs[row - place + 1 : row + 1], 1)
        if repeat != 1:
            in_prompt = np.unpackbits(mask[request].numpy().view(np.uint8), bitorder="little")[:vocab].astype(bool)
            scale = np.where(in_prompt | (seen > 0), repeat, one)
            own *= np.where(own > 0, one / scale, scale)
        own -= often * seen.astype(np.float32)
        own -= ever * (seen > 0).astype(np.float32)


def apply_grammar_bitmask(
    grid: Grid, logits: Tensor, stride: int, where: Tensor, cu_logits: Tensor, bitmask: Tensor, bitmask_stride: int,
    vocab: int, MASK_STRIDE: int, BLOCK_SIZE: int,
) -> None:  # fmt: skip
    first, values = cu_logits.tolist(), logits.numpy()
    for bits, mapped in zip(bitmask.numpy(), where[: grid[0]].tolist(), strict=True):
        request, place = divmod(mapped, MASK_STRIDE)
        row = first[request] + place
        if row < first[request + 1]:
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab]
            values[row, allowed == 0] = -np.inf


def flatten_sampled(
    grid: Grid, flat: Tensor, tokens: Tensor, tokens_stride: int, sampled: Tensor, cu_logits: Tensor, num_warps: int = 1
) -> None:
    owner, place = _runs(sampled.numpy().astype(np.int64))
    flat.numpy()[cu_logits.numpy()[owner] + place] = tokens.numpy()[owner, place]


def ranks(grid: Grid, out: Tensor, logits: Tensor, stride: int, tokens: Tensor, vocab: int, BLOCK_SIZE: int) -> None:
    values = logits.numpy()
    own = np.take_along_axis(values, tokens.numpy()[:, None], axis=1)
    beyond = -vocab % BLOCK_SIZE  # the kernel counts its padding for tokens at -inf, which only rejected rows have
    out.numpy()[:] = (values >= own).sum(axis=1) + np.where(np.isneginf(own[:, 0]), beyond, 0)


def topk_log_softmax(
    grid: Grid, out: Tensor, logits: Tensor, stride: int, ids: Tensor, ids_stride: int, topk: int, vocab: int,
    BLOCK_SIZE: int, TOPK_BLOCK_SIZE: int,
) -> None:  # fmt: skip
    out.copy_(logits.to(torch.float32).log_softmax(dim=-1).gather(-1, ids))


def prompt_logprobs_token_ids(
    grid: Grid, out: Tensor, begins: Tensor, idx: Tensor, computed: Tensor, texts: Tensor, texts_stride: int,
    BLOCK_SIZE: int,
) -> None:  # fmt: skip
    request = idx.numpy()
    owner, place = _runs(np.diff(begins.numpy()[: grid[0] + 1]))
    following = np.minimum(computed.numpy()[request][owner] + 1 + place, texts.shape[1] - 1)
    out.numpy()[: len(owner)] = texts.numpy()[request[owner], following]


PRIVATE = ("_runs", "_at")
HOST_KERNELS: dict[str, Callable[..., None]] = {
    f"_{name}_kernel": function
    for name, function in list(globals().items())
    if getattr(function, "__module__", None) == __name__ and name not in PRIVATE
}
