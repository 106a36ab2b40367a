/* Chooses which drafted tokens of a batch a pass verifies (das/budget/marginal.py gives the rule). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    double gain; /* expected emitted tokens */
    int64_t request;
} Token;

#define PER_OCTAVE 128           /* buckets per octave: the first 7 bits of a gain's mantissa */
#define BUCKETS (12 * PER_OCTAVE) /* all gains below 2^-12 of the largest gain go into the last bucket */

/* A sort key: the exponent and the first bits of the mantissa. It grows with the gain, which is not negative. */
static inline int64_t leading_bits(double gain) {
    int64_t bits;
    memcpy(&bits, &gain, sizeof bits);
    return bits >> 45;
}

static inline int64_t bucket_of(double gain, int64_t top) {
    int64_t bucket = top - leading_bits(gain);
    return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* Sorts by falling gain: first into buckets by the logarithm, then within each bucket. */
static void sort_tokens(int64_t count, const Token *tokens, Token *sorted) {
    int64_t start[BUCKETS + 1] = {0};
    double largest = 0.0;
    for (int64_t k = 0; k < count; k++)
        if (tokens[k].gain > largest) largest = tokens[k].gain;
    const int64_t top = leading_bits(largest);
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

/* probs [n][stride]: P(token is accepted | tokens before it are). counts [n]: drafted tokens. seconds [most + 1]:
 * times of a pass with 0 ... most drafted tokens; most is at most the sum of counts. fixed: how many tokens to choose;
 * -1: as many as minimise the time per emitted token.
 * Writes num_kept [n]: tokens to verify; gains [most + 1]: summed gain of the 0 ... most best tokens; lowest: gain
 * of the last chosen token, or 0. Returns the total number of chosen tokens, or -1 without memory. */
int64_t das_trim(int64_t n, int64_t stride, const double *probs, const int64_t *counts, const double *seconds,
                 int64_t most, int64_t fixed, int64_t *num_kept, double *gains, double *lowest) {
    int64_t count = 0, total = 0, best = 0;
    for (int64_t i = 0; i < n; i++) {
        num_kept[i] = 0;
        total += counts[i];
    }
    *lowest = gains[0] = 0.0;
    if (!most) return 0;
    Token *tokens = malloc(2 * (size_t)total * sizeof *tokens), *sorted = tokens + total;
    if (!tokens) return -1;
    for (int64_t i = 0; i < n; i++) {
        double gain = 1.0;
        for (int64_t j = 0; j < counts[i]; j++) {
            gain *= probs[i * stride + j];
            tokens[count++] = (Token){gain, i};
        }
    }
    sort_tokens(count, tokens, sorted);
    double least = seconds[0] / (double)n;
    for (int64_t k = 1; k <= most; k++) {
        gains[k] = gains[k - 1] + sorted[k - 1].gain;
        double each = seconds[k] / ((double)n + gains[k]);
        if (each < least) least = each, best = k;
    }
    if (fixed >= 0) best = fixed;
    for (int64_t k = 0; k < best; k++) num_kept[sorted[k].request]++;
    if (best) *lowest = sorted[best - 1].gain;
    free(tokens);
    return best;
}
