// Keyed Gumbel-max sampling: token = argmax_v( logit[v] + gumbel(key, v) ), in one pass that makes the noise on the fly.
//
// das/noise.h makes the noise. tests/made_noise.py repeats it bit for bit with torch tensors on any device.
#include <float.h>
#include <math.h>

#include "../noise.h"

#define BLOCK 256

// The token of one row: argmax( logit + noise ), or argmax( logit ) for a greedy row. The first of equal scores wins.
static int64_t sample_row(const float *row, int64_t vocab, int64_t seed, int64_t position, int greedy) {
    float score[BLOCK], best = -INFINITY;
    int64_t best_token = 0;
    uint64_t key = noise_key(seed, position);
    uint32_t a = (uint32_t)key, b = (uint32_t)(key >> 32);
    for (int64_t start = 0; start < vocab; start += BLOCK) {
        int n = (int)(vocab - start < BLOCK ? vocab - start : BLOCK);
        if (greedy) {
            for (int i = 0; i < n; i++) score[i] = row[start + i];
        } else {
            uint32_t base = (uint32_t)start;
            for (int i = 0; i < n; i++) score[i] = row[start + i] + gumbel(a, b, base + (uint32_t)i);
        }
        float top = -INFINITY;
        for (int i = 0; i < n; i++) top = score[i] > top ? score[i] : top;
        if (top > best) {
            best = top;
            int i = 0;
            while (score[i] != top) i++;
            best_token = start + i;
        }
    }
    return best_token;
}

// Each request has num_drafted[request] + 1 rows of logits. Its tokens are sampled one after the other, up to and
// including the first that differs from the drafted one; the rows after that are never read.
// logits: rows x vocab, the row stride in elements. greedy: [requests], nonzero for a greedy one; NULL means none is.
// emitted: requests x width, the result, with -1 after each request's last token.
void keyed_verify(const float *logits, int64_t vocab, int64_t stride, int64_t requests, const int64_t *num_drafted,
                  const int32_t *draft_tokens, const int64_t *seeds, const int64_t *positions, const uint8_t *greedy,
                  int64_t width, int32_t *emitted) {
    for (int64_t r = 0; r < requests; r++, emitted += width) {
        int64_t n = 0, last = num_drafted[r];
        for (int accepted = 1; accepted && n <= last; n++) {
            int64_t token = sample_row(logits + n * stride, vocab, seeds[r], positions[r] + n, greedy && greedy[r]);
            emitted[n] = (int32_t)token;
            accepted = n < last && token == draft_tokens[n];
        }
        while (n < width) emitted[n++] = -1;
        logits += (last + 1) * stride;
        draft_tokens += last;
    }
}

#define LANES 16
#define PAIRS 4                // as in das/drafter/distributions.h, which says what a pair is
#define MAX_LEVEL 18           // the level of a probability of .01

// exp(x) for x <= 0, to three digits: enough, because pairs are rounded to a quarter of a nat. Below -80 the result is
// exp(-80).
static inline float rough_exp(float x) {
    x = x > -80.0f ? x : -80.0f;
    float t = x * 1.44269504f, whole = (float)(int32_t)(t - 0.5f), r = t - whole;
    float p = 1.0f + r * (0.69314718f + r * (0.24022651f + r * 0.05550411f));
    int32_t bits = ((int32_t)whole + 127) << 23;
    float power; memcpy(&power, &bits, 4);
    return p * power;
}

static inline float highest_of_block(const float *score) {
    float lanes[LANES], top = -INFINITY;
    for (int l = 0; l < LANES; l++) lanes[l] = score[l];
    for (int i = LANES; i < BLOCK; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] = score[i + l] > lanes[l] ? score[i + l] : lanes[l];
    for (int l = 0; l < LANES; l++) top = lanes[l] > top ? lanes[l] : top;
    return top;
}

// The likeliest tokens of n rows of logits, as pairs: token << 5 | level, where exp(-level / 4) is the probability.
// rows: [n], indices into logits and pairs. pairs: all rows x PAIRS, likeliest first; other entries are not written.
void keyed_pairs(const float *logits, int64_t vocab, int64_t stride, int64_t n, const int64_t *rows, uint32_t *pairs) {
    for (int64_t r = 0; r < n; r++) {
        const float *row = logits + rows[r] * stride;
        float top[PAIRS] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        int64_t token[PAIRS];
        for (int64_t start = 0; start < vocab; start += BLOCK) {
            int n_block = (int)(vocab - start < BLOCK ? vocab - start : BLOCK);
            if (n_block == BLOCK && !(highest_of_block(row + start) > top[PAIRS - 1])) continue;
            for (int i = 0; i < n_block; i++) {
                float x = row[start + i];
                if (!(x > top[PAIRS - 1])) continue;
                int k = PAIRS - 1;
                for (; k && top[k - 1] < x; k--) top[k] = top[k - 1], token[k] = token[k - 1];
                top[k] = x, token[k] = start + i;
            }
        }
        float lanes[LANES] = {0}, sum = 0.0f;
        int64_t start = 0;
        for (; start + LANES <= vocab; start += LANES)
            for (int l = 0; l < LANES; l++) lanes[l] += rough_exp(row[start + l] - top[0]);
        for (; start < vocab; start++) sum += rough_exp(row[start] - top[0]);
        for (int l = 0; l < LANES; l++) sum += lanes[l];
        float total = top[0] + soft_log(sum);
        for (int k = 0; k < PAIRS && top[k] > -INFINITY; k++) {
            int level = (int)((total - top[k]) * 4.0f + 0.5f);
            if (level > MAX_LEVEL || token[k] >= 1 << 26) break;
            pairs[rows[r] * PAIRS + k] = (uint32_t)token[k] << 5 | (uint32_t)level;
        }
    }
}

// The noise itself, for tests: out[token] = gumbel(key0, key1, token).
void keyed_noise(uint32_t key0, uint32_t key1, int64_t vocab, float *out) {
    for (int64_t i = 0; i < vocab; i++) out[i] = gumbel(key0, key1, (uint32_t)i);
}
