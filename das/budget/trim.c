/* Chooses which drafted tokens of a batch a pass verifies (das/budget/marginal.py has the rule). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double gain; /* expected emitted tokens, weighted */
    int64_t request;
} Token;

#define OCTAVES 24  /* gains below 2^-24 of the largest share one bucket */
#define PER_OCTAVE 128
#define BUCKETS (OCTAVES * PER_OCTAVE)

/* Buckets by logarithm: the exponent and the first 7 bits of the mantissa. Larger gains come first. */
static inline int64_t bucket_of(double gain, int64_t top) {
    int64_t bits;
    memcpy(&bits, &gain, sizeof bits);
    int64_t bucket = top - (bits >> 45);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* Sorts by falling gain: into buckets, then within each of them. */
static void sort_tokens(int64_t count, const Token *tokens, Token *sorted) {
    int32_t start[BUCKETS + 1] = {0};
    double largest = 0.0;
    int64_t top;
    for (int64_t k = 0; k < count; k++)
        if (tokens[k].gain > largest) largest = tokens[k].gain;
    memcpy(&top, &largest, sizeof top);
    top >>= 45;
    for (int64_t k = 0; k < count; k++) start[bucket_of(tokens[k].gain, top) + 1]++;
    for (int64_t bucket = 0; bucket < BUCKETS; bucket++) start[bucket + 1] += start[bucket];
    for (int64_t k = 0; k < count; k++) sorted[start[bucket_of(tokens[k].gain, top)]++] = tokens[k];
    for (int64_t k = 1; k < count; k++) {
        Token token = sorted[k];
        int64_t at = k;
        for (; at > 0 && sorted[at - 1].gain < token.gain; at--) sorted[at] = sorted[at - 1];
        sorted[at] = token;
    }
}

/* probs [n][stride]: of each drafted token, given the tokens before it. counts [n]: drafted tokens. weight [n]: what an
 * emitted token of the request is worth; the mean is 1. seconds [most + 1]: of a pass with 0 ... most drafted tokens.
 * earlier_tokens, earlier_seconds: what is added to the tokens that the pass emits and to its seconds.
 * Writes num_kept [n], the tokens to verify, and result: {expected accepted tokens, weighted; the lowest gain kept; tokens
 * that could have been kept}. Returns how many tokens are kept in all, or -1 without memory. */
int64_t das_trim(int64_t n, int64_t stride, const double *probs, const int64_t *counts, const double *weight,
                 const double *seconds, int64_t most, double earlier_tokens, double earlier_seconds, int64_t *num_kept,
                 double *gains, double *result) {
    int64_t count = 0, total = 0, best = 0;
    memset(num_kept, 0, (size_t)n * sizeof *num_kept);
    for (int64_t i = 0; i < n; i++) total += counts[i];
    result[0] = result[1] = 0.0;
    result[2] = 0.0;
    gains[0] = 0.0;
    if (!total || !most) return 0;
    Token *tokens = malloc(2 * (size_t)total * sizeof *tokens), *sorted = tokens + total;
    if (!tokens) return -1;
    for (int64_t i = 0; i < n; i++) {
        double gain = weight[i];
        for (int64_t j = 0; j < counts[i]; j++) {
            gain *= probs[i * stride + j];
            if (gain <= 0.0) break;
            tokens[count++] = (Token){gain, i};
        }
    }
    sort_tokens(count, tokens, sorted);
    double emitted = (double)n + earlier_tokens, gained = 0.0;
    double least = (seconds[0] + earlier_seconds) / emitted;
    if (most > count) most = count;
    result[2] = (double)most;
    for (int64_t k = 0; k < most; k++) {
        emitted += sorted[k].gain;
        gained += sorted[k].gain;
        gains[k + 1] = gained;
        double each = (seconds[k + 1] + earlier_seconds) / emitted;
        if (each < least) least = each, best = k + 1, result[0] = gained, result[1] = sorted[k].gain;
    }
    for (int64_t k = 0; k < best; k++) num_kept[sorted[k].request]++;
    free(tokens);
    return best;
}
