/* The time of a target pass, learned from passes (das/budget/prices.py gives the form and the reasons).
 *
 *     seconds = row live + context_token context + drafting [if anything is drafted] + branch branches + G(tokens)
 *
 * No part is negative: a live request costs no less than an extra token does. G is linear between knots and never
 * falls. Its unknowns are its value at the first knot and the rise over each segment, so "never falls" becomes "no
 * rise is negative". The fit is weighted least squares of relative errors. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define KNOTS 91            /* 1 ... 2^15 tokens, six per octave (fewer where they would be less than 1 apart) */
#define PER_OCTAVE 6
#define BINS (2 * KNOTS)    /* two for each interval between knots: passes without drafts, and with drafts */
#define PER_BIN 12          /* passes remembered in each bin */
#define FORGET 0.995        /* each newer pass reduces a pass's weight by this factor */
#define OLD 0.02            /* lowest weight, so that sizes that are not tried again are not forgotten */
#define INTERRUPTED 1.6     /* a pass that took this many times the typical pass of its bin does not count */
#define DOUBT 8             /* after this many passes, a far too slow pass counts as interrupted */
#define CLEARED 2           /* so many fast passes without drafts prove that drafts are dearer; one may follow a burst */
#define CHANGING 32         /* changes of prices within this many passes count as one change */
#define CONTROL 16          /* in a burst (other work slows the machine), every CONTROL-th pass is plain */
#define LONG_BURST 64       /* after this many passes of a burst, its slowness counts as normal */
#define NEW_SIZE 1.25       /* a pass of a new size that took this many times its prediction may have compiled */
#define NEW_IN_A_ROW 6      /* at most this many such passes in a row are ignored */
#define SIZES (1 << 15)     /* new sizes are tracked up to this many tokens per pass */
#define EVERY 8             /* passes between fits; a surprising pass triggers a fit at once */
#define SURPRISE 0.25       /* relative error of a surprising pass */
#define ERROR_MEMORY 0.995  /* exponential forgetting of the mean error */
/* Priors, which count like passes: SMOOTH ties neighbouring slopes to each other, PULL ties every slope to the assumed
 * one, RIDGE ties row, context_token, drafting and branch to 0. */
#define NOISE 0.02 /* the priors' weights hold at this relative noise; with more noise, passes count less */
#define MOST_NOISE 25.0
#define SMOOTH 0.008
#define PULL 0.004
#define RIDGE 0.01

#define QUARTER 0.25 /* of the live requests: so many extra tokens may be tried at once */
#define GROWTH 1.5 /* a pass has at most this multiple of the extra tokens tried before */
#define FEW 4      /* a pass may always have this many extra tokens */

#define FIXED 5 /* unknowns other than the rises: row, context_token, drafting, branch, G(first knot) */
#define MAX_UNKNOWNS (FIXED + KNOTS)
#define ROUNDS 40 /* exchanges of the active set; 3 to 6 are usual */

typedef double Matrix[MAX_UNKNOWNS][MAX_UNKNOWNS];

typedef struct {
    double live, tokens, branches, context, seconds;
    int64_t when;
} Pass;

typedef struct {
    double ratio;        /* seconds of a small pass / seconds of a token, assumed until passes show it */
    int64_t learns;      /* 0: the form is given, and nothing is learned */
    int64_t seen, plain, fitted_at, reach; /* passes; passes without drafts; the largest number of tokens in a pass */
    int64_t unlearned; /* passes in a row that were not learned because their size was new */
    uint8_t known[SIZES]; /* [tokens]: whether there was a pass of this size */
    double predictions, errors;
    double noise; /* standard deviation of a pass's time, relative */
    /* An unexplained slow pass: its tokens (0: no such pass), extra tokens, time / prediction, and number. Until it is
     * explained, a pass has at most `allowed` extra tokens. */
    double suspect, suspect_extra, suspect_slowdown, allowed;
    int64_t suspect_at;
    int64_t changed, changed_at, changed_since; /* whether drafts became dearer; when; from which pass on */
    int64_t wants_control; /* passes are far slower than predicted: a plain pass shows whether the machine is slow */
    int64_t cleared; /* plain passes that were fast while passes with drafts were slow */
    double slowness; /* slowdown of passes while other work takes the machine (a burst); else 1 */
    int64_t burst_passes; /* passes since the burst began */
    int64_t knots;
    double knot[KNOTS];
    int64_t first, segments; /* of the form: its first knot, and its number of segments */
    double form[MAX_UNKNOWNS];
    int64_t filled[BINS], next[BINS];
    Pass passes[BINS][PER_BIN];
} Prices;

/* Solves a[used][used] x = b[used] by Cholesky. Unknowns that are not used become 0. */
static void solve(int p, Matrix a, const double *b, const uint8_t *used, double *x) {
    static _Thread_local Matrix factor;
    int index[MAX_UNKNOWNS], m = 0;
    for (int i = 0; i < p; i++) {
        x[i] = 0.0;
        if (used[i]) index[m++] = i;
    }
    double y[MAX_UNKNOWNS];
    for (int i = 0; i < m; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = a[index[i]][index[j]];
            for (int k = 0; k < j; k++) sum -= factor[i][k] * factor[j][k];
            factor[i][j] = i == j ? sqrt(fmax(sum, 1e-12 * a[index[i]][index[i]])) : sum / factor[j][j];
        }
        double sum = b[index[i]];
        for (int k = 0; k < i; k++) sum -= factor[i][k] * y[k];
        y[i] = sum / factor[i][i];
    }
    for (int i = m - 1; i >= 0; i--) {
        double sum = y[i];
        for (int k = i + 1; k < m; k++) sum -= factor[k][i] * x[index[k]];
        x[index[i]] = sum / factor[i][i];
    }
}

/* Finds the x >= 0 that minimises x a x / 2 - b x, by block pivoting: all unknowns that violate a condition change
 * sides at once. If that does not converge, only the last of them changes sides, which always terminates. */
static void solve_nonnegative(int p, Matrix a, const double *b, double *x) {
    uint8_t used[MAX_UNKNOWNS];
    int fewest = p + 1, patience = 5;
    memset(used, 1, sizeof used);
    for (int round = 0; round < ROUNDS; round++) {
        uint8_t breaks[MAX_UNKNOWNS];
        int count = 0, last = -1;
        solve(p, a, b, used, x);
        for (int i = 0; i < p; i++) {
            double gradient = -b[i];
            if (!used[i])
                for (int j = 0; j < p; j++) gradient += a[i][j] * x[j];
            breaks[i] = used[i] ? x[i] < 0.0 : gradient < -1e-12 * fabs(b[i]);
            if (breaks[i]) count++, last = i;
        }
        if (!count) return;
        if (count < fewest) fewest = count, patience = 5;
        else patience--;
        for (int i = 0; i < p; i++)
            if (breaks[i] && (patience >= 0 || i == last)) used[i] = !used[i];
    }
    for (int i = 0; i < p; i++)
        if (x[i] < 0.0) x[i] = 0.0;
}

/* Returns the segment of the form with this number of tokens. The first and the last segment are unbounded. */
static int64_t segment_of(const Prices *prices, double tokens) {
    int64_t low = 0, high = prices->segments - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (prices->knot[prices->first + middle] <= tokens) low = middle;
        else high = middle - 1;
    }
    return low;
}

static double predict(const Prices *prices, double live, double tokens, double branches, double context) {
    const double *form = prices->form, *knot = prices->knot + prices->first;
    const double drafting = tokens > live ? form[2] : 0.0;
    tokens = fmax(tokens, knot[0]); /* smaller passes are unknown */
    int64_t last = segment_of(prices, tokens);
    double seconds = form[0] * live + form[1] * context + drafting + form[3] * branches + form[4];
    for (int64_t j = 0; j < last; j++) seconds += form[FIXED + j];
    return seconds + form[FIXED + last] * (tokens - knot[last]) / (knot[last + 1] - knot[last]);
}

/* Returns the multiple of its prediction from which a pass counts as interrupted. */
static double far_above(const Prices *prices) { return fmax(INTERRUPTED, 1.0 + 4.0 * prices->noise); }

/* Copies a bin's passes, except interrupted ones, which lie far above the lower median of their bin (relative to their
 * predictions), and sets weights by age. Returns the number of copied passes. */
static int64_t undisturbed(const Prices *prices, int64_t bin, Pass *chosen, double *weight, double *spread,
                           double *spread_of) {
    double ratio[PER_BIN], sorted[PER_BIN];
    int64_t count = 0, filled = prices->filled[bin];
    for (int64_t k = 0; k < filled; k++) {
        const Pass *pass = &prices->passes[bin][k];
        double expected = predict(prices, pass->live, pass->tokens, pass->branches, pass->context);
        int64_t at = k;
        ratio[k] = pass->seconds / fmax(expected, 1e-300);
        for (; at > 0 && sorted[at - 1] > ratio[k]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = ratio[k];
    }
    const double median = sorted[(filled - 1) / 2];
    for (int64_t k = 0; k < filled; k++) {
        if (ratio[k] > far_above(prices) * median) continue;
        *spread += filled > 2 ? fabs(ratio[k] / median - 1.0) : 0.0;
        *spread_of += filled > 2;
        chosen[count] = prices->passes[bin][k];
        weight[count] = fmax(OLD, pow(FORGET, (double)(prices->seen - 1 - chosen[count].when)));
        count++;
    }
    return count;
}

static void fit(Prices *prices) {
    static _Thread_local Matrix a;
    static _Thread_local Pass chosen[BINS * PER_BIN];
    static _Thread_local double weight[BINS * PER_BIN];
    int64_t count = 0;
    double spread = 3 * NOISE, spread_of = 3.0;
    for (int64_t bin = 0; bin < BINS; bin++)
        if (prices->filled[bin]) count += undisturbed(prices, bin, chosen + count, weight + count, &spread, &spread_of);
    double least = INFINITY, most = 0.0, most_live = 1.0, most_context = 1.0, most_branches = 1.0, total = 0.0, seconds = 0.0, live = 0.0;
    for (int64_t k = 0; k < count; k++) {
        least = fmin(least, chosen[k].tokens);
        most = fmax(most, chosen[k].tokens);
        most_live = fmax(most_live, chosen[k].live);
        most_context = fmax(most_context, chosen[k].context);
        most_branches = fmax(most_branches, chosen[k].branches);
        total += weight[k];
        seconds += weight[k] * chosen[k].seconds;
        live += weight[k] * chosen[k].live;
    }
    const double typical = seconds / total, slope = typical / (prices->ratio + live / total);
    /* Knots around the sizes seen, and one segment beyond. */
    int64_t first = 0, last = 1;
    while (first + 2 < prices->knots && prices->knot[first + 1] <= least) first++;
    while (last + 1 < prices->knots && prices->knot[last] < most) last++;
    if (last < first + 1) last = first + 1;
    if (last + 1 < prices->knots) last++;
    prices->first = first;
    prices->segments = last - first;
    prices->fitted_at = prices->seen;
    const int segments = (int)prices->segments, p = FIXED + segments;
    const double *knot = prices->knot + first, noise = 1.25 * spread / spread_of,
                 unit = fmin(MOST_NOISE, noise * noise / (NOISE * NOISE)) / (typical * typical);
    prices->noise = noise;
    double b[MAX_UNKNOWNS] = {0};
    for (int c = 0; c < p; c++) memset(a[c], 0, (size_t)p * sizeof a[c][0]);
    /* First use hat functions: column FIXED - 1 + j is G(knot[j]). Two of these are not 0 for each pass. */
    for (int64_t k = 0; k < count; k++) {
        const Pass *pass = &chosen[k];
        int64_t j = segment_of(prices, pass->tokens);
        double share = (pass->tokens - knot[j]) / (knot[j + 1] - knot[j]), each = weight[k] / (pass->seconds * pass->seconds);
        int column[6] = {0, 1, 2, 3, FIXED - 1 + (int)j, FIXED + (int)j};
        double value[6] = {pass->live / most_live, pass->context / most_context, pass->tokens > pass->live,
                           pass->branches / most_branches, 1.0 - share, share};
        for (int c = 0; c < 6; c++) {
            b[column[c]] += each * value[c] * pass->seconds;
            for (int d = 0; d < 6; d++) a[column[c]][column[d]] += each * value[c] * value[d];
        }
    }
    /* Then substitute G(knot[j]) = G(knot[0]) + the rises before j, by sums from the end, over rows and columns. */
    for (int j = p - 1; j >= FIXED; j--) b[j - 1] += b[j];
    for (int j = p - 1; j >= FIXED; j--)
        for (int c = 0; c < p; c++) a[j - 1][c] += a[j][c];
    for (int j = p - 1; j >= FIXED; j--)
        for (int c = 0; c < p; c++) a[c][j - 1] += a[c][j];
    for (int c = 0; c < 4; c++) a[c][c] += RIDGE * unit;
    for (int j = 0; j < segments; j++) {
        double width = knot[j + 1] - knot[j];
        double *row = a[FIXED + j] + FIXED, *next_row = a[FIXED + j + 1] + FIXED;
        row[j] += PULL * unit;
        b[FIXED + j] += PULL * unit * slope * width;
        if (j + 1 == segments) break;
        double next = knot[j + 2] - knot[j + 1], shorter = fmin(width, next);
        double here = shorter / width, there = -shorter / next; /* difference of the slopes, over the shorter segment */
        row[j] += SMOOTH * unit * here * here;
        row[j + 1] += SMOOTH * unit * here * there;
        next_row[j] += SMOOTH * unit * here * there;
        next_row[j + 1] += SMOOTH * unit * there * there;
    }
    solve_nonnegative(p, a, b, prices->form);
    prices->form[0] /= most_live;
    prices->form[1] /= most_context;
    prices->form[3] /= most_branches;
}

int64_t das_prices_size(void) { return (int64_t)sizeof(Prices); }

void das_prices_init(Prices *prices, double ratio) {
    memset(prices, 0, sizeof *prices);
    prices->ratio = ratio;
    prices->learns = 1;
    prices->slowness = 1.0;
    for (int i = 0; i < KNOTS; i++) {
        double knot = round(exp2((double)i / PER_OCTAVE));
        if (!prices->knots || knot > prices->knot[prices->knots - 1]) prices->knot[prices->knots++] = knot;
    }
    prices->segments = prices->knots - 1;
    prices->form[FIXED - 1] = ratio + 1.0; /* a token takes a second */
    for (int64_t j = 0; j < prices->segments; j++) prices->form[FIXED + j] = prices->knot[j + 1] - prices->knot[j];
}

/* Uses the form das.budget.latency_forms.Drafting, which is not refitted. */
void das_prices_give(Prices *prices, double base, double row, double drafting, double token) {
    prices->learns = 0;
    prices->slowness = 1.0;
    prices->first = 0;
    prices->segments = prices->knots - 1;
    prices->form[0] = row - token;
    prices->form[1] = 0.0;
    prices->form[2] = drafting;
    prices->form[3] = 0.0;
    prices->form[FIXED - 1] = base + token;
    for (int64_t j = 0; j < prices->segments; j++)
        prices->form[FIXED + j] = token * (prices->knot[j + 1] - prices->knot[j]);
}

double das_prices_predict(const Prices *prices, double live, double drafted, double branches, double context) {
    return prices->slowness * predict(prices, live, live + drafted, branches, context);
}

static int64_t bin_of(const Prices *prices, double tokens, int drafted) {
    int64_t bin = 0;
    while (bin + 1 < prices->knots && prices->knot[bin + 1] <= tokens) bin++;
    return 2 * bin + drafted;
}

/* Keeps either the passes of a bin that are older than `since` or the others, in order of age. */
static void keep(Prices *prices, int64_t bin, int64_t since, int older) {
    Pass kept[PER_BIN];
    int64_t count = 0, filled = prices->filled[bin], oldest = filled == PER_BIN ? prices->next[bin] : 0;
    for (int64_t k = 0; k < filled; k++) {
        Pass pass = prices->passes[bin][(oldest + k) % PER_BIN];
        if ((pass.when < since) == older) kept[count++] = pass;
    }
    memcpy(prices->passes[bin], kept, (size_t)count * sizeof *kept);
    prices->filled[bin] = count;
    prices->next[bin] = count % PER_BIN;
}

/* Drafts have become dearer: forget the passes of this bin's size or larger that are older than `since`. If drafts also
 * became dearer a moment ago, this is the same change, and passes since its beginning are kept. */
static void forget(Prices *prices, double tokens, int64_t since) {
    if (prices->changed && prices->seen - prices->changed_at < CHANGING) since = prices->changed_since;
    prices->changed = 1;
    prices->changed_at = prices->seen;
    prices->changed_since = since;
    double largest = tokens;
    for (int64_t bin = bin_of(prices, tokens, 0); bin < BINS; bin++) {
        keep(prices, bin, since, 0);
        for (int64_t k = 0; k < prices->filled[bin]; k++) largest = fmax(largest, prices->passes[bin][k].tokens);
    }
    prices->reach = (int64_t)largest;
    prices->fitted_at = prices->seen - EVERY; /* fit at once */
}

/* The machine is slow for all kinds of passes: forget the passes since then. Drafts are chosen as before. */
static void begin_burst(Prices *prices, int64_t since, double slowness) {
    for (int64_t bin = 0; bin < BINS; bin++) keep(prices, bin, since, 1);
    prices->slowness = slowness;
    prices->burst_passes = 0;
}

/* Takes in a pass of a burst. Not its time is learned, but the burst's slowness. A long burst becomes the normal state.
 * Plain passes in between show that the machine is slow. Returns whether the burst continues. */
static int goes_on(Prices *prices, double slowdown, int plain) {
    if (slowdown < sqrt(prices->slowness)) {
        prices->slowness = 1.0;
        prices->wants_control = 0;
        return 0;
    }
    const int far = slowdown > far_above(prices) * prices->slowness;
    if (plain || !far) prices->slowness *= pow(slowdown / prices->slowness, 0.2);
    prices->burst_passes++;
    prices->wants_control = !plain && (far || prices->wants_control || prices->burst_passes % CONTROL == 0);
    if (prices->burst_passes < LONG_BURST || !plain) {
        prices->wants_control |= prices->burst_passes >= LONG_BURST;
        return 1;
    }
    for (int64_t bin = 0; bin < BINS; bin++)
        for (int64_t k = 0; k < prices->filled[bin]; k++) prices->passes[bin][k].seconds *= prices->slowness;
    prices->slowness = 1.0;
    fit(prices);
    return 0;
}

static void end_suspicion(Prices *prices) {
    prices->suspect = 0.0;
    prices->wants_control = prices->cleared = 0;
}

/* A far too slow pass has one of three causes: it was interrupted, the machine is slow for a while, or drafts have
 * become dearer. It was interrupted if the next pass of that size takes as long as predicted. Until then passes stay
 * smaller and grow step by step. If the next pass is slow too, a plain pass shows whether the machine is slow. */
static void suspect(Prices *prices, double live, double tokens, double slowdown) {
    const double extra = tokens - live;
    const int slow = slowdown > far_above(prices), plain = extra == 0.0, is_first = prices->suspect == 0.0;
    if (plain && !is_first && (prices->wants_control || slow)) {
        prices->wants_control = 0;
        if (slowdown > sqrt(prices->suspect_slowdown)) begin_burst(prices, prices->suspect_at, slowdown);
        else if (++prices->cleared < CLEARED) return;
        else forget(prices, prices->suspect, prices->suspect_at);
        end_suspicion(prices);
    } else if (slow) {
        prices->suspect_slowdown = is_first ? slowdown : fmax(slowdown, prices->suspect_slowdown);
        if (is_first || (extra > 0.0 && (extra < prices->suspect_extra || prices->suspect_extra == 0.0))) {
            prices->suspect = tokens;
            prices->suspect_extra = extra;
        }
        if (is_first) {
            prices->suspect_at = prices->seen;
            prices->allowed = extra / 2;
        } else prices->wants_control = 1;
    } else if (!is_first) {
        if (extra >= 0.9 * prices->suspect_extra || prices->seen - prices->suspect_at > DOUBT) end_suspicion(prices);
        else if (extra >= 0.9 * prices->allowed) prices->allowed = GROWTH * extra + 1;
    }
}

/* Whether a pass was slow because the engine prepared kernels for a new number of tokens (oneDNN takes 3 ms, on
 * passes of 4 ms). At most a few passes in a row are explained this way, because prices may really be that high. */
static int prepared_kernels(Prices *prices, double tokens, double slowdown) {
    int64_t size = (int64_t)tokens, is_new = size < SIZES && !prices->known[size];
    if (is_new) prices->known[size] = 1;
    if (!is_new || slowdown < NEW_SIZE || prices->unlearned >= NEW_IN_A_ROW) {
        prices->unlearned = 0;
        return 0;
    }
    prices->unlearned++;
    return 1;
}

void das_prices_observe(Prices *prices, double live, double drafted, double branches, double context, double seconds) {
    if (!prices->learns || seconds <= 0.0) return;
    double tokens = live + drafted, error = 1.0;
    int64_t bin = bin_of(prices, tokens, drafted > 0.0);
    if (prices->seen) {
        double expected = predict(prices, live, tokens, branches, context);
        error = fabs(prices->slowness * expected / seconds - 1.0);
        prices->errors = prices->errors * ERROR_MEMORY + error;
        prices->predictions = prices->predictions * ERROR_MEMORY + 1.0;
        if (drafted > 0.0 && prepared_kernels(prices, tokens, seconds / (prices->slowness * expected))) return;
        if (prices->slowness > 1.0) {
            if (goes_on(prices, seconds / expected, drafted == 0.0)) return;
            expected = predict(prices, live, tokens, branches, context); /* a long burst has changed it */
        }
        if (tokens <= (double)prices->reach && tokens >= prices->knot[prices->first])
            suspect(prices, live, tokens, seconds / expected);
        if (prices->slowness > 1.0) return; /* a burst has begun */
    }
    prices->passes[bin][prices->next[bin]] = (Pass){live, tokens, branches, context, seconds, prices->seen};
    prices->next[bin] = (prices->next[bin] + 1) % PER_BIN;
    if (prices->filled[bin] < PER_BIN) prices->filled[bin]++;
    prices->seen++;
    prices->plain += drafted == 0.0;
    if (tokens > (double)prices->reach) prices->reach = (int64_t)tokens;
    if (prices->seen - prices->fitted_at >= EVERY || error > SURPRISE || prices->filled[bin] <= 2) fit(prices);
}

/* Whether the next pass should carry no drafts. */
int64_t das_prices_wants_control(const Prices *prices) { return prices->wants_control; }

/* Returns the most extra tokens to try in a pass now: slightly more than were tried before, or a quarter of the live
 * requests. Fewer could not make up for what drafting costs however few tokens are drafted. */
int64_t das_prices_most(const Prices *prices, double live) {
    double most = fmax(fmax(FEW, QUARTER * live), GROWTH * ((double)prices->reach - live));
    if (prices->suspect > 0.0) most = fmin(most, fmax(FEW, prices->allowed));
    return (int64_t)most;
}

/* Writes seconds [most + 1]: times of a pass of `live` requests with 0 ... most extra tokens. */
void das_prices_table(const Prices *prices, double live, double context, int64_t most, double *seconds) {
    const double *form = prices->form, *knot = prices->knot + prices->first;
    double below = form[0] * live + form[1] * context + form[FIXED - 1];
    int64_t last = segment_of(prices, live);
    for (int64_t j = 0; j < last; j++) below += form[FIXED + j];
    double slope = form[FIXED + last] / (knot[last + 1] - knot[last]);
    seconds[0] = below + slope * fmax(live - knot[last], 0.0);
    below += form[2];
    for (int64_t extra = 1; extra <= most; extra++) {
        double tokens = live + (double)extra;
        while (last + 1 < prices->segments && tokens > knot[last + 1]) {
            below += form[FIXED + last];
            last++;
            slope = form[FIXED + last] / (knot[last + 1] - knot[last]);
        }
        seconds[extra] = below + slope * fmax(tokens - knot[last], 0.0);
    }
}

/* Returns the seconds that a branch adds to a pass. */
double das_prices_branch(const Prices *prices) { return prices->form[3]; }

/* Returns the factor by which all passes are slower while other work takes the machine; 1 is normal. */
double das_prices_slowness(const Prices *prices) { return prices->slowness; }

double das_prices_error(const Prices *prices) {
    return prices->predictions > 0.0 ? prices->errors / prices->predictions : NAN;
}

/* Returns the lowest mean cost of an extra token, over all numbers of extra tokens. Unit: a plain pass's time per live
 * request. The minimum lies at a knot. */
double das_prices_cheapest(const Prices *prices, double live, double context) {
    const double *form = prices->form, *knot = prices->knot + prices->first;
    int64_t j = segment_of(prices, live);
    double plain = predict(prices, live, live, 0.0, context), next = predict(prices, live, live + 1.0, 0.0, context);
    double cheapest = next - plain, at = knot[j], seconds = form[2] - form[FIXED + j] * fmax(live - at, 0.0) / (knot[j + 1] - at);
    for (; j < prices->segments; j++) { /* seconds: extra time up to the end of the segment, beyond a plain pass */
        seconds += form[FIXED + j];
        if (knot[j + 1] >= live + 1.0) cheapest = fmin(cheapest, seconds / (knot[j + 1] - live));
    }
    return plain > 0.0 ? fmax(0.0, cheapest * live / plain) : 0.0;
}
