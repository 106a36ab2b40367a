/* How far each draft of a batch is worth verifying (das/budget/marginal.py has the rule). */
#include <stdint.h>

/* probs [n][stride]: of each drafted token, given those before it; counts [n]: drafted. share [n]: of the pass's fixed
 * time that a request answers for. Seconds: base a pass, row a request, token a drafted token.
 * Writes kept [n] and expected: tokens accepted of those kept. Returns the seconds that keeping them saves, less the
 * fixed price of drafting, which is the caller's. */
double das_trim(int64_t n, int64_t stride, const double *probs, const int64_t *counts, const double *share, double base,
                double row, double token, int64_t *kept, double *expected) {
    double saved = 0.0;
    *expected = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double alone = row + share[i] * base, cost = alone, emitted = 1.0, reach = 1.0;
        int64_t j = 0;
        for (; j < counts[i]; j++) {
            reach *= probs[i * stride + j];
            if (reach * cost <= emitted * token) break;
            emitted += reach;
            cost += token;
        }
        kept[i] = j;
        *expected += emitted - 1.0;
        saved += emitted * alone - cost;
    }
    return saved;
}
