// Keyed Gumbel-max sampling: token = argmax_v( logit[v] + gumbel(key, v) ), in one pass that makes the noise on the fly.
//
// Every floating-point step is an IEEE addition, multiplication or division in a fixed order. There is no libm and no
// fused multiply-add, so das/verify/noise.py repeats the steps bit for bit with torch tensors on any device.
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 256

static inline uint32_t mix32(uint32_t h) {
    h ^= h >> 16; h *= 0x21f0aaadu;
    h ^= h >> 15; h *= 0xd35a2d97u;
    h ^= h >> 15;
    return h;
}

// log(x) for normal x > 0. Splits x into an exponent e and a mantissa m in [sqrt(1/2), sqrt(2)); then
// log(m) = 2 atanh((m-1)/(m+1)), as a polynomial.
static inline float soft_log(float x) {
    uint32_t bits; memcpy(&bits, &x, 4);
    int32_t e = (int32_t)((bits - 0x3f3504f3u) >> 23);        // floor(log2(x / sqrt(1/2)))
    e = (e ^ 0x100) - 0x100;                                   // sign-extend 9 bits
    uint32_t mbits = bits - ((uint32_t)e << 23);
    float m; memcpy(&m, &mbits, 4);
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.22222222f;
    p = p * z; p = p + 0.2857142857f;
    p = p * z; p = p + 0.4f;
    p = p * z; p = p + 0.6666666667f;
    p = p * z; p = p + 2.0f;
    float r = s * p, k = (float)e * 0.69314718056f;
    return k + r;
}

static inline float gumbel(uint32_t key0, uint32_t key1, uint32_t token) {
    uint32_t x = mix32(mix32(token * 0x9e3779b1u + key0) ^ key1);
    float w = ((float)(int32_t)(x >> 1) + 0.5f) * 4.656612873e-10f;  // in (0, 1), 31 bits, fine near 0
    w = w < 0.99999994f ? w : 0.99999994f;
    // The exponential -log(1 - w) is computed as -log(u) * w / (1 - u) with u = 1 - w. That is exact to rounding for
    // small w too, and small w win.
    float u = 1.0f - w, d = 1.0f - u;
    float l = -soft_log(u) * w;
    float e = d > 0.0f ? l / d : w;
    return -soft_log(e);
}

static inline uint64_t splitmix64(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// The token of one row: argmax( logit + noise ), or argmax( logit ) for a greedy row. The first of equal scores wins.
static int64_t sample_row(const float *row, int64_t vocab, int64_t seed, int64_t position, int greedy) {
    float score[BLOCK], best = -INFINITY;
    int64_t best_token = 0;
    uint64_t key = splitmix64(splitmix64((uint64_t)seed) ^ (uint64_t)position);
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

// Samples one token per row. logits: rows x vocab, the row stride in elements. tokens: [rows], the result.
// greedy: [rows], nonzero for a greedy row; NULL means no row is greedy.
void keyed_argmax(const float *logits, int64_t rows, int64_t vocab, int64_t stride, const int64_t *seeds,
                  const int64_t *positions, const uint8_t *greedy, int64_t *tokens) {
    for (int64_t r = 0; r < rows; r++)
        tokens[r] = sample_row(logits + r * stride, vocab, seeds[r], positions[r], greedy && greedy[r]);
}

// Each request has num_drafted[request] + 1 rows of logits. Its tokens are sampled one after the other, up to and
// including the first that differs from the drafted one; the rows after that are never read.
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

// keyed_verify for drafts that branch. parents: for each drafted token the one before it, counted from the request's
// first, or -1. The tokens of a request are sampled along one path, until no child of the path's end was sampled.
// rows: requests x width, the row of each emitted token; behind the last one the request's first row.
void keyed_walk(const float *logits, int64_t vocab, int64_t stride, int64_t requests, const int64_t *num_drafted,
                const int32_t *draft_tokens, const int64_t *parents, const int64_t *seeds, const int64_t *positions,
                const uint8_t *greedy, int64_t width, int32_t *emitted, int64_t *rows) {
    int64_t first_row = 0;
    for (int64_t r = 0; r < requests; r++, emitted += width, rows += width) {
        int64_t n = 0, last = num_drafted[r], node = -1, child = -1;
        do {
            node = child;
            rows[n] = first_row + node + 1;
            int64_t token = sample_row(logits + rows[n] * stride, vocab, seeds[r], positions[r] + n,
                                       greedy && greedy[r]);
            emitted[n++] = (int32_t)token;
            for (child = node + 1; child < last; child++)
                if (parents[child] == node && draft_tokens[child] == token) break;
        } while (child < last);
        for (; n < width; n++) emitted[n] = -1, rows[n] = first_row;
        first_row += last + 1;
        draft_tokens += last;
        parents += last;
    }
}

#define LANES 16

// The best and the second best of some scores, in lanes that the compiler can hold in vector registers.
typedef struct { float first[LANES], second[LANES]; } Best;

static inline void enter(Best *best, const float *score) {
    Best now = *best;
    for (int i = 0; i < BLOCK; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float x = score[i + l], high = now.first[l], lower = x < high ? x : high;
            now.first[l] = x > high ? x : high;
            now.second[l] = lower > now.second[l] ? lower : now.second[l];
        }
    *best = now;
}

static inline float highest(const float *lanes) {
    float top = -INFINITY;
    for (int l = 0; l < LANES; l++) top = lanes[l] > top ? lanes[l] : top;
    return top;
}

// The best and the second best of scale * logit + noise over each row, for every scale. The noise is made once for all.
// A scale of infinity stands for the logit alone, as in a greedy row.
// tokens: rows x num_scales, the first token that has the best score. margins: rows x num_scales, best - second best;
// infinity where one token alone is possible.
void keyed_draft(const float *logits, int64_t rows, int64_t vocab, int64_t stride, const int64_t *seeds,
                 const int64_t *positions, const uint8_t *greedy, const float *scales, int64_t num_scales,
                 int64_t *tokens, float *margins) {
    for (int64_t r = 0; r < rows; r++, logits += stride, tokens += num_scales, margins += num_scales) {
        uint64_t key = splitmix64(splitmix64((uint64_t)seeds[r]) ^ (uint64_t)positions[r]);
        uint32_t a = (uint32_t)key, b = (uint32_t)(key >> 32);
        int is_greedy = greedy && greedy[r];
        float top[num_scales];
        Best best[num_scales];
        for (int64_t s = 0; s < num_scales; s++) {
            top[s] = -INFINITY, tokens[s] = 0;
            for (int l = 0; l < LANES; l++) best[s].first[l] = best[s].second[l] = -INFINITY;
        }
        for (int64_t start = 0; start < vocab; start += BLOCK) {
            float noise[BLOCK], score[BLOCK];
            int n = (int)(vocab - start < BLOCK ? vocab - start : BLOCK);
            if (!is_greedy)
                for (int i = 0; i < n; i++) noise[i] = gumbel(a, b, (uint32_t)start + (uint32_t)i);
            for (int i = n; i < BLOCK; i++) score[i] = -INFINITY;
            for (int64_t s = 0; s < num_scales; s++) {
                float scale = scales[s];
                if (is_greedy || isinf(scale))
                    for (int i = 0; i < n; i++) score[i] = logits[start + i];
                else
                    for (int i = 0; i < n; i++) score[i] = logits[start + i] * scale + noise[i];
                enter(&best[s], score);
                float now = highest(best[s].first);
                if (now > top[s]) {
                    int i = 0;
                    while (score[i] != now) i++;
                    top[s] = now, tokens[s] = start + i;
                }
            }
        }
        for (int64_t s = 0; s < num_scales; s++) {
            int l = 0;  // of the winner, whose lane counts with its second alone
            while (l < LANES - 1 && best[s].first[l] != top[s]) l++;
            best[s].first[l] = best[s].second[l];
            margins[s] = top[s] - highest(best[s].first);
        }
    }
}

// The noise itself, for tests: out[token] = gumbel(key0, key1, token).
void keyed_noise(uint32_t key0, uint32_t key1, int64_t vocab, float *out) {
    for (int64_t i = 0; i < vocab; i++) out[i] = gumbel(key0, key1, (uint32_t)i);
}
