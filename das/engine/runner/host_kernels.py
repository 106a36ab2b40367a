"""numpy in place of the Triton kernels of vLLM's model runner, for CPUs. host_kernels.c has those of every pass.

Each function of HOST_KERNELS has the name of its kernel without the underscore before it and "_kernel" behind it; those
of a speculator have the name of its folder before it. It gets the launch's grid and the kernel's arguments `k`: their
names are vLLM's without "_ptr", and tensors are numpy arrays that share their memory, except for those of AS_TENSORS,
which may be of a type that numpy lacks. It writes what its kernel writes, bit for bit (tests/engine/runner
compares them in Triton's interpreter). One differs in its last bits: topk_log_softmax adds up as torch does.
"""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Grid = tuple[int, ...]
AS_TENSORS = ("logits", "hidden_states", "next_input_hidden_states")


def _runs(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lay out `counts[i]` cells of each i one after the other. Returns i and the place within i, for each cell."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def apply_write(grid: Grid, k: Any) -> None:
    begin, contents = 0, k.write_contents
    rows = zip(k.write_indices.tolist(), k.write_starts.tolist(), k.write_cu_lens.tolist(), strict=True)
    for i, (row, start, end) in enumerate(itertools.islice(rows, grid[0])):
        if k.MULTI_GROUP:  # an array for each kind of KV cache: `output` has their addresses
            group = int(k.write_group_ids[i])
            at = int(k.output[group]) + (row * int(k.output_stride[group]) + start) * contents.itemsize
            ctypes.memmove(at, contents[begin:end].ctypes.data, (end - begin) * contents.itemsize)
        else:
            at = row * k.output_stride + start
            k.output.reshape(-1)[at : at + end - begin] = contents[begin:end]
        begin = end


def prepare_rope_positions(grid: Grid, k: Any) -> None:
    for row in range(grid[0]):
        request, start, end = int(k.idx_mapping[row]), int(k.query_start_loc[row]), int(k.query_start_loc[row + 1])
        done = int(k.num_computed_tokens[request])
        if done >= int(k.prefill_lens[request]):
            k.positions[:, start:end] = np.arange(done, done + end - start) + int(k.prefill_delta[request])
            continue
        given = k.prefill_positions.reshape(-1)[request * k.prefill_positions_stride0 :]
        for kind in range(k.NUM_DIMS):
            at = kind * k.prefill_positions_stride1 + done
            k.positions[kind, start:end] = given[at : at + end - start]


# ---- sampling parameters and log-probs ----


def temperature(grid: Grid, k: Any) -> None:
    by = k.temperature[k.expanded_idx_mapping]
    own = k.logits.numpy()
    own /= np.where(by == 0, np.float32(1), by)[:, None]


def min_p(grid: Grid, k: Any) -> None:
    by = k.min_p[k.expanded_idx_mapping]
    rows = by != 0
    own = k.logits.numpy()[rows]
    own[own < own.max(axis=1, keepdims=True) + np.log(by[rows, None])] = -np.inf
    k.logits.numpy()[rows] = own


def bias(grid: Grid, k: Any) -> None:
    for own, request, pos in zip(k.logits.numpy(), k.expanded_idx_mapping.tolist(), k.pos.tolist(), strict=True):
        if count := int(k.num_allowed_token_ids[request]):
            tokens = k.allowed_token_ids[request, :count]
            kept = own[tokens]
            own[:] = -np.inf
            own[tokens] = kept
        if count := int(k.num_logit_bias[request]):
            own[k.bias_token_ids[request, :count]] += k.bias[request, :count]
        if (count := int(k.num_stop_token_ids[request])) and pos + 1 < int(k.min_lens[request]):
            tokens = k.stop_token_ids[request, :count]
            kept = own[tokens]
            own[tokens] = -np.inf
            if k.CHECK_ALL_MASKED_ROWS and int(k.restore_when_all_masked[request]) and np.isneginf(own).all():
                own[tokens] = kept


def bad_words(grid: Grid, k: Any) -> None:
    for row, (request, place) in enumerate(
        zip(k.expanded_idx_mapping.tolist(), k.expanded_local_pos.tolist(), strict=True)
    ):
        if not (count := int(k.num_bad_words[request])):
            continue
        output = k.all_token_ids[request, int(k.prompt_len[request]) : int(k.total_len[request])]
        text = [*output.tolist(), *k.input_ids[row - place + 1 : row + 1].tolist()]
        bounds, words = k.bad_word_offsets[request, : count + 1].tolist(), k.bad_word_token_ids[request].tolist()
        for start, end in itertools.pairwise(bounds):
            *before, last = words[start:end]
            if text[len(text) - len(before) :] == before:
                k.logits[row, last] = -np.inf


def bincount(grid: Grid, k: Any) -> None:
    for request in k.expanded_idx_mapping.tolist():
        prompt, end = int(k.prompt_len[request]), int(k.prefill_len[request])
        tokens = k.all_token_ids[request, :prompt]
        bits = (np.uint32(1) << (tokens % 32).astype(np.uint32)).view(np.int32)
        np.bitwise_or.at(k.prompt_bin_mask[request], tokens // 32, bits)
        np.add.at(k.output_bin_counts[request], k.all_token_ids[request, prompt:end], 1)


def penalties(grid: Grid, k: Any) -> None:
    one = np.float32(1)
    for row, (request, place) in enumerate(
        zip(k.expanded_idx_mapping.tolist(), k.expanded_local_pos.tolist(), strict=True)
    ):
        repeat, often, ever = (
            each[request] for each in (k.repetition_penalty, k.frequency_penalty, k.presence_penalty)
        )
        if (repeat, often, ever) == (1, 0, 0):
            continue
        seen, own = k.output_bin_counts[request].copy(), k.logits[row].numpy()
        np.add.at(seen, k.token_ids[row - place + 1 : row + 1], 1)
        if repeat != 1:
            in_prompt = np.unpackbits(k.prompt_bin_mask[request].view(np.uint8), bitorder="little")[: len(own)]
            scale = np.where(in_prompt.astype(bool) | (seen > 0), repeat, one)
            own *= np.where(own > 0, one / scale, scale)
        own -= often * seen.astype(np.float32)
        own -= ever * (seen > 0).astype(np.float32)


def apply_grammar_bitmask(grid: Grid, k: Any) -> None:
    first = k.cu_num_logits.tolist()
    for bits, mapped in zip(k.bitmask, k.logits_indices[: grid[0]].tolist(), strict=True):
        request, place = divmod(mapped, k.MASK_STRIDE)
        row = first[request] + place
        if row < first[request + 1]:
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: k.vocab_size]
            k.logits[row, torch.from_numpy(allowed == 0)] = -torch.inf


def flatten_sampled(grid: Grid, k: Any) -> None:
    owner, place = _runs(k.num_sampled.astype(np.int64))
    k.flat_sampled[k.cu_num_logits[owner] + place] = k.sampled[owner, place]


def ranks(grid: Grid, k: Any) -> None:
    own = k.logits.gather(1, torch.from_numpy(k.token_ids)[:, None])
    beyond = (
        -k.vocab_size % k.BLOCK_SIZE
    )  # the kernel counts its padding for tokens at -inf: only rejected rows have it
    k.output[:] = (k.logits >= own).sum(dim=1).numpy() + np.where(own[:, 0].isneginf().numpy(), beyond, 0)


def topk_log_softmax(grid: Grid, k: Any) -> None:
    scores = k.logits.to(torch.float32).log_softmax(dim=-1)
    torch.gather(scores, 1, torch.from_numpy(k.topk_ids), out=torch.from_numpy(k.output))


def prompt_logprobs_token_ids(grid: Grid, k: Any) -> None:
    owner, place = _runs(np.diff(k.query_start_loc[: grid[0] + 1]))
    following = k.num_computed_tokens[k.idx_mapping][owner] + 1 + place
    last = k.all_token_ids.shape[1] - 1
    k.prompt_logprobs_token_ids[: len(owner)] = k.all_token_ids[k.idx_mapping[owner], np.minimum(following, last)]


# ---- drafters that are models ----


def standalone_ar_prepare_prefill_inputs(grid: Grid, k: Any) -> None:
    (num_reqs,) = grid
    starts = k.query_start_loc[: num_reqs + 1]
    valid = np.diff(starts) - k.num_rejected[:num_reqs]
    first = starts[:-1] + np.arange(num_reqs)
    owner, place = _runs(np.diff(starts) + 1)
    source = np.minimum(starts[owner] + place, len(k.target_input_ids) - 1)
    own = np.where(place == valid[owner], k.last_sampled.reshape(-1)[k.idx_mapping[:num_reqs]][owner], 0)
    k.out_input_ids[: len(owner)] = np.where(place < valid[owner], k.target_input_ids[source], own)
    k.out_positions[: len(owner)] = np.minimum(k.target_positions[starts[owner]] + place, k.max_model_len - 1)
    k.last_token_indices[: k.max_num_reqs] = k.out_seq_lens[: k.max_num_reqs] = 0
    k.last_token_indices[:num_reqs] = first + valid
    k.out_seq_lens[:num_reqs] = np.minimum(k.seq_lens[:num_reqs] + 1, k.max_model_len)
    k.out_query_start_loc[: k.max_num_reqs + 1] = len(owner)
    k.out_query_start_loc[:num_reqs] = first


def target_dependent_ar_prepare_prefill_inputs(grid: Grid, k: Any) -> None:
    (num_reqs,) = grid
    starts, request = k.query_start_loc[: num_reqs + 1], k.idx_mapping[:num_reqs]
    counts = np.diff(starts) - k.num_rejected[:num_reqs]
    owner, place = _runs(counts)
    at, last = starts[owner] + place, starts[:-1] + counts - 1
    k.draft_positions[at] = k.target_positions[at]
    shifted = at[place > 0]
    k.draft_input_ids[shifted - 1] = k.target_input_ids[shifted]
    k.draft_input_ids[last] = np.where(
        k.num_sampled[:num_reqs] > 0, k.last_sampled.reshape(-1)[request], k.next_prefill_tokens.reshape(-1)[request]
    )
    k.last_token_indices[: k.max_num_reqs] = k.draft_seq_lens[: k.max_num_reqs] = 0
    k.last_token_indices[:num_reqs], k.draft_seq_lens[:num_reqs] = last, k.seq_lens[:num_reqs]
    k.draft_query_start_loc[: k.max_num_reqs + 1] = starts[-1]
    k.draft_query_start_loc[:num_reqs] = starts[:-1]
    k.draft_current_step[...] = 0


def target_dependent_ar_prepare_decode_inputs(grid: Grid, k: Any) -> None:
    num_reqs = grid[0] - 1
    k.query_start_loc[: k.max_num_reqs + 1] = np.minimum(np.arange(k.max_num_reqs + 1), num_reqs)
    k.input_ids[:num_reqs] = k.draft_tokens.reshape(len(k.draft_tokens), -1)[:num_reqs, 0]
    k.sample_src_positions[:num_reqs] += 1
    k.seq_lens[: k.max_num_reqs] = 0
    k.seq_lens[:num_reqs] = k.target_seq_lens[:num_reqs] - k.num_rejected[:num_reqs]
    _advance(k, num_reqs)


def target_dependent_ar_update_draft_inputs(grid: Grid, k: Any) -> None:
    (num_reqs,), step = grid, int(k.current_draft_step)
    k.output_draft_tokens[:num_reqs, step] = k.draft_tokens[:num_reqs]
    if step < k.num_speculative_steps - 1:
        k.sample_src_positions[:num_reqs] += 1
        k.input_ids[:num_reqs] = k.draft_tokens[:num_reqs]
        k.next_input_hidden_states[:num_reqs, : k.hidden_size] = k.hidden_states[:num_reqs]
        _advance(k, num_reqs)


def _advance(k: Any, num_reqs: int) -> None:
    if k.ADVANCE_DRAFT_POSITIONS:
        k.positions[:num_reqs] = np.minimum(k.positions[:num_reqs] + 1, k.max_model_len - 1)
        k.seq_lens[:num_reqs] = np.minimum(k.seq_lens[:num_reqs] + 1, k.max_model_len)


HOST_KERNELS: dict[str, Callable[[Grid, Any], None]] = {
    f"_{function.__name__}_kernel": function
    for function in (
        *(apply_write, temperature, min_p, bias, bad_words, bincount, penalties, apply_grammar_bitmask),
        *(flatten_sampled, ranks, topk_log_softmax, prompt_logprobs_token_ids, prepare_rope_positions),
        *(standalone_ar_prepare_prefill_inputs, target_dependent_ar_prepare_prefill_inputs),
        *(target_dependent_ar_prepare_decode_inputs, target_dependent_ar_update_draft_inputs),
    )
}
