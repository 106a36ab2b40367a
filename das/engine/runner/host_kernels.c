/* The Triton kernels of vLLM's model runner that run in every pass, in C, for CPUs. host_kernels.py has the others.

A function has the name of its kernel without "_" before it and "_kernel" behind it. Its arguments are the launch's grid
and the kernel's arguments, in their order; stand_in.py checks the types of arrays against these declarations. It writes
what its kernel writes. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

void gather_block_tables(int64_t groups, int64_t rows, const int64_t *requests, const uint64_t *from, const uint64_t *to,
                         const int64_t *strides, const int32_t *num_blocks, int64_t num_blocks_stride, int64_t num_reqs,
                         int64_t block_size) {
    for (int64_t group = 0; group < groups; group++)
        for (int64_t row = 0; row < rows; row++) {
            int64_t stride = strides[group];
            int32_t *target = (int32_t *)to[group] + row * stride;
            if (row >= num_reqs) {
                memset(target, 0, stride * sizeof *target);
                continue;
            }
            const int32_t *source = (const int32_t *)from[group] + requests[row] * stride;
            memcpy(target, source, num_blocks[group * num_blocks_stride + requests[row]] * sizeof *target);
        }
}

void compute_slot_mappings(int64_t groups, int64_t rows, int64_t max_num_tokens, const int64_t *requests,
                           const int32_t *starts, const int64_t *pos, const uint64_t *tables, const int64_t *strides,
                           const int32_t *sizes, const bool *enabled, const bool *sharded, int64_t *slots,
                           int64_t slots_stride, int64_t cp_rank, int64_t cp_size, int64_t cp_interleave, int64_t pad,
                           int64_t block_size) {
    for (int64_t group = 0; group < groups; group++) {
        int64_t *out = slots + group * slots_stride, size = sizes[group];
        for (int64_t row = 0; row < rows - 1; row++) {
            const int32_t *table = (const int32_t *)tables[group] + requests[row] * strides[group];
            bool is_real = enabled[group] && requests[row] >= 0;
            for (int64_t at = starts[row]; at < starts[row + 1]; at++)
                out[at] = is_real ? table[pos[at] / size] * size + pos[at] % size : pad;
        }
        for (int64_t at = starts[rows - 1]; at < max_num_tokens; at++)
            out[at] = pad;
    }
}

void prepare_prefill_inputs(int64_t rows, int32_t *input_ids, int32_t *next, int64_t next_stride, int64_t num_lookahead,
                            const int64_t *requests, const int32_t *starts, const int32_t *texts, int64_t texts_stride,
                            const int32_t *prefill_lens, const int32_t *num_computed, int64_t block_size,
                            int64_t lookahead_block) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t request = requests[row], done = num_computed[request], length = prefill_lens[request];
        if (done >= length)
            continue;
        const int32_t *text = texts + request * texts_stride;
        int64_t count = starts[row + 1] - starts[row], end = done + count;
        memcpy(input_ids + starts[row], text + done, count * sizeof *text);
        for (int64_t i = 0; i < num_lookahead; i++)
            next[i * next_stride + request] = end + i < length ? text[end + i] : 0;
    }
}

void prepare_pos_seq_lens(int64_t rows, int64_t *pos, int32_t *seq_lens, const int64_t *requests, const int32_t *starts,
                          const int32_t *num_computed, int64_t max_num_reqs, int64_t block_size) {
    for (int64_t row = 0; row < rows - 1; row++) {
        int32_t done = num_computed[requests[row]], count = starts[row + 1] - starts[row];
        seq_lens[row] = done + count;
        for (int32_t i = 0; i < count; i++)
            pos[starts[row] + i] = done + i;
    }
    for (int64_t row = rows - 1; row < max_num_reqs; row++)
        seq_lens[row] = 0;
}

void combine_sampled_and_draft_tokens(int64_t rows, int32_t *input_ids, const int64_t *requests,
                                      const int64_t *last_sampled, const int32_t *starts, const int32_t *seq_lens,
                                      const int32_t *prefill_len, const int64_t *drafts, int64_t drafts_stride,
                                      const int32_t *cu_num_logits, int64_t *logits_indices, int64_t block_size,
                                      int64_t num_new) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t count = cu_num_logits[row + 1] - cu_num_logits[row], end = starts[row + 1], request = requests[row];
        for (int64_t i = 0; i < count; i++)
            logits_indices[cu_num_logits[row] + i] = end - count + i;
        if (seq_lens[row] <= prefill_len[request])
            continue;
        if (num_new && seq_lens[row] - count >= prefill_len[request])
            input_ids[end - count] = last_sampled[request];
        int64_t drafted = count - num_new;
        for (int64_t i = 0; i < drafted; i++)
            input_ids[end - drafted + i] = drafts[request * drafts_stride + i];
    }
}

void get_num_sampled_and_rejected(int64_t rows, int32_t *num_sampled, int32_t *num_rejected, const int32_t *seq_lens,
                                  const int32_t *cu_num_logits, const int64_t *requests, const int32_t *prefill_len) {
    for (int64_t row = 0; row < rows; row++) {
        bool is_unfinished = seq_lens[row] < prefill_len[requests[row]];
        if (is_unfinished)
            num_sampled[row] = 0;
        num_rejected[row] = is_unfinished ? 0 : cu_num_logits[row + 1] - cu_num_logits[row] - num_sampled[row];
    }
}

void post_update(int64_t rows, const int64_t *requests, int32_t *num_computed, int64_t *last_sampled, int32_t *counts,
                 int64_t counts_stride, const int64_t *sampled, int64_t sampled_stride, const int32_t *num_sampled,
                 const int32_t *num_rejected, const int32_t *starts, int32_t *texts, int64_t texts_stride,
                 int32_t *total_len) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t request = requests[row];
        if (request < 0)
            continue;
        const int64_t *tokens = sampled + row * sampled_stride;
        int32_t *end = texts + request * texts_stride + total_len[request];
        for (int32_t i = 0; i < num_sampled[row]; i++) {
            end[i] = last_sampled[request] = tokens[i];
            if (counts)
                counts[request * counts_stride + tokens[i]]++;
        }
        total_len[request] += num_sampled[row] > 0 ? num_sampled[row] : 0;
        num_computed[request] += (starts ? starts[row + 1] - starts[row] : 0) - num_rejected[row];
    }
}

void expand_idx_mapping(int64_t rows, const int64_t *requests, int64_t *expanded, int32_t *local_pos,
                        const int32_t *cu_num_logits, int64_t block_size) {
    for (int64_t row = 0; row < rows; row++)
        for (int32_t at = cu_num_logits[row]; at < cu_num_logits[row + 1]; at++) {
            expanded[at] = requests[row];
            local_pos[at] = at - cu_num_logits[row];
        }
}

void gather_draft_sampled(int64_t blocks, int32_t *draft_sampled, int64_t *pos, const int32_t *input_ids,
                          const int64_t *positions, const int64_t *logits_indices, const int64_t *requests,
                          const int32_t *local_pos, const int32_t *prefill_len, int64_t num_logits, int64_t block_size) {
    for (int64_t row = 0; row < num_logits; row++) {
        pos[row] = positions[logits_indices[row]];
        bool is_placeholder = local_pos[row] > 0 && pos[row] - local_pos[row] < prefill_len[requests[row]];
        draft_sampled[row] = is_placeholder ? -1 : input_ids[logits_indices[row]];
    }
}
