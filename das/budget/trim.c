/* Cuts each draft of a batch where verifying more of it stops paying (das/budget/marginal.py has the rule). */
#include <stdint.h>

/* probs [n][stride]: of each drafted token, given the tokens before it. counts [n]: drafted tokens. weight [n]: the share
 * of the pass's fixed time that a request is charged with. Seconds: base for a pass, row for a request, token for a
 * drafted token.
 * Writes num_kept [n], the tokens to verify, and expected, how many of them will be accepted. Returns the seconds that
 * verifying them saves. The fixed cost of drafting is not subtracted: the caller does that. */
double das_trim(int64_t n, int64_t stride, const double *probs, const int64_t *counts, const double *weight, double base,
                double row, double token, int64_t *num_kept, double *expected) {
    double saved = 0.0;
    *expected = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double undrafted = row + weight[i] * base, cost = undrafted, emitted = 1.0, reach = 1.0;
        int64_t j = 0;
        for (; j < counts[i]; j++) {
            reach *= probs[i * stride + j];
            if (reach * cost <= emitted * token) break;
            emitted += reach;
            cost += token;
        }
        num_kept[i] = j;
        *expected += emitted - 1.0;
        saved += emitted * undrafted - cost;
    }
    return saved;
}
