/* How occurrences become a probability: two small models, learned online from the tokens that were emitted.
 *
 * Votes: an occurrence has the weight match * source * rank, three learned factors, and a learned weight stands for "none
 * of them". A token's share is the sum of its occurrences' weights over the sum of all.
 * Mixture: the shares of the BEST most voted tokens and what was counted about them are the features of a softmax over
 * these tokens and "another one", with weights by the longest match. Its probabilities are the draft's.
 * Both follow the gradient of the log-probability of the token that came. Compile with -ffp-contract=off and without
 * -ffast-math: das/drafter/reference.py computes the same doubles in the same order. */
#include <math.h>

#include "exp_log.h"

#define BUCKETS 16                   /* of match lengths */
#define SOURCES 19                   /* own text, live or this tick, by age, other problems */
#define RANKS 11
#define VARIETIES 8
#define BEST 4                       /* tokens the mixture looks at */
#define N_COUNTS 7
#define N_OWN 4
#define FEATURES (6 + 2 * (N_COUNTS + N_OWN))
#define OTHER_PROBLEM (SOURCES - 1)
#define MAX_CAND 512
#define TRACE 8                      /* drafted positions that are learned from */

/* Mirrored in native.py. All positive factors but mix, which is additive. */
typedef struct {
    double match[2][BUCKETS];        /* by bucket; [1]: in other problems */
    double source[SOURCES];
    double rank[RANKS];              /* how many newer occurrences have a match of the same bucket */
    double none[BUCKETS][VARIETIES]; /* by the longest match's bucket and the number of distinct tokens */
    double mix[BUCKETS][FEATURES + 1];
} Weights;

static const double VOTE_RATE = 0.005, MIX_RATE = 0.002;
/* Occurrences are counted that match at least 1, 2, 3, 4, 6, 9, 14 tokens, in the own text 1, 2, 3, 5: how many of these
 * a match length reaches. */
static const uint8_t REACHED[33] = {0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
                                    7, 7, 7};
static const uint8_t REACHED_OWN[33] = {0, 1, 2, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4,
                                        4, 4, 4, 4};

typedef struct { uint32_t pos; int32_t tok, match; uint8_t source, rank, bucket, other; } Candidate;
typedef double Lanes __attribute__((vector_size(8 * BEST), aligned(8)));
typedef struct { uint16_t all[N_COUNTS + 1], own[N_OWN + 1]; } Counts;   /* occurrences by counted lengths reached */
/* One drafted position: what was known about it. */
typedef struct {
    int32_t n, n_best, top, variety;
    int32_t best[BEST];
    Lanes f[FEATURES], p;               /* of each token */
    double f_none, p_none;              /* of "none of them"; f_none: the log of its share */
} Mixed;


static const uint8_t BUCKET_OF[33] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  9,  10, 10, 11, 11, 11, 11,
                                      12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 14, 14, 14, 15};
static const uint8_t RANK_OF[24] = {0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9};

static double log1p_of[MAX_CAND + 1];                 /* log(1 + count), filled once */
static void fill_logs(void) {
    for (int i = 0; i <= MAX_CAND; i++) log1p_of[i] = log(1.0 + i);
}

static double weight_of(const Weights *w, const Candidate *k) {
    return w->match[k->other][k->bucket] * w->source[k->source] * w->rank[k->rank];
}

/* The features of counts by length, from the longest on: `count` of a token's occurrences and of all of them. */
static void count_features(const uint16_t *count, const uint16_t *all, int levels, int b, Lanes *f) {
    int mine = 0, total = 0;
    for (int l = levels; l > 0; l--) {
        mine += count[l];
        total += all[l];
        f[2 * l - 2][b] = (mine ? 1.0 : -0.5) * log1p_of[mine ? mine : total];
        f[2 * l - 1][b] = total && mine == total;
    }
}

/* Ranks n > 0 candidates and mixes them. */
static void mix(const Weights *w, Candidate *cand, int n, Mixed *m) {
    int32_t tok[MAX_CAND], longest[MAX_CAND], seen[BUCKETS] = {0}, others = 0, own = -1;
    Counts count[MAX_CAND], total = {0};
    uint8_t newest[MAX_CAND];
    double share[MAX_CAND], all = 0.0;
    int distinct = 0;
    m->n = n;
    m->top = 0;
    for (int i = 0; i < n; i++) {
        Candidate *k = &cand[i];
        k->bucket = BUCKET_OF[k->match];
        int newer = k->other ? others++ : seen[k->bucket]++;
        k->rank = newer < 24 ? RANK_OF[newer] : RANKS - 1;
        double weight = weight_of(w, k);
        all += weight;
        int j = 0;
        while (j < distinct && tok[j] != k->tok) j++;
        if (j == distinct) {
            tok[j] = k->tok;
            share[j] = 0.0;
            longest[j] = 0;
            newest[j] = 0;
            count[j] = (Counts){0};
            distinct++;
        }
        share[j] += weight;
        if (k->match > longest[j]) longest[j] = k->match;
        newest[j] |= newer == 0;
        if (k->other) continue;
        if (k->bucket > m->top) m->top = k->bucket;
        count[j].all[REACHED[k->match]]++;
        total.all[REACHED[k->match]]++;
        if (k->source) continue;
        if (own < 0) own = j;
        count[j].own[REACHED_OWN[k->match]]++;
        total.own[REACHED_OWN[k->match]]++;
    }
    m->variety = distinct < VARIETIES ? distinct : VARIETIES - 1;
    double none = w->none[m->top][m->variety];
    all += none;
    m->n_best = distinct < BEST ? distinct : BEST;
    memset(m->f, 0, sizeof m->f);
    double voted[BEST] = {1.0, 1.0, 1.0, 1.0};
    for (int b = 0; b < m->n_best; b++) {
        int j = 0;
        for (int i = 1; i < distinct; i++) if (share[i] > share[j]) j = i;
        Lanes *f = m->f;
        m->best[b] = tok[j];
        voted[b] = share[j] / all;
        f[1][b] = newest[j];
        f[2][b] = own == j;
        f[3][b] = log1p_of[longest[j]] - 1.5;
        f[4][b] = b == 0;
        f[5][b] = BUCKET_OF[longest[j]] == m->top;
        count_features(count[j].all, total.all, N_COUNTS, b, f + 6);
        count_features(count[j].own, total.own, N_OWN, b, f + 6 + 2 * N_COUNTS);
        share[j] = -1.0;
    }
    for (int b = 0; b < m->n_best; b++) m->f[0][b] = log_of(voted[b]);
    const double *v = w->mix[m->top];
    Lanes score = {0};
    for (int i = 0; i < FEATURES; i++) score += v[i] * m->f[i];
    m->f_none = log_of(none / all);
    double sum, highest = m->p_none = v[0] * m->f_none + v[FEATURES];
    for (int b = 0; b < m->n_best; b++) if (score[b] > highest) highest = score[b];
    m->p_none = sum = exp_of(m->p_none - highest);
    for (int b = 0; b < m->n_best; b++) m->p[b] = exp_of(score[b] - highest);
    for (int b = 0; b < m->n_best; b++) sum += m->p[b];
    m->p /= sum;
    m->p_none /= sum;
}

/* The likeliest of the mixed tokens; ties go to the most voted. */
static int likeliest(const Mixed *m) {
    int best = 0;
    for (int b = 1; b < m->n_best; b++) if (m->p[b] > m->p[best]) best = b;
    return best;
}

/* One step up the gradient of log P(tok), for a position that was mixed from these candidates. */
static void learn(Weights *w, const Candidate *cand, const Mixed *m, int32_t tok) {
    double *v = w->mix[m->top], *null = &w->none[m->top][m->variety], none = *null, all = none, right = 0.0;
    double weight[MAX_CAND];
    int hit = 0;
    for (int b = 0; b < m->n_best; b++) {
        int is = m->best[b] == tok;
        double g = MIX_RATE * (is - m->p[b]);
        hit |= is;
        for (int i = 0; i < FEATURES; i++) v[i] += g * m->f[i][b];
    }
    double g = MIX_RATE * (!hit - m->p_none);
    v[0] += g * m->f_none;
    v[FEATURES] += g;
    for (int i = 0; i < m->n; i++) {
        weight[i] = weight_of(w, &cand[i]);
        all += weight[i];
        if (cand[i].tok == tok) right += weight[i];
    }
    double scale = VOTE_RATE / all, bonus = right > 0.0 ? VOTE_RATE / right : 0.0;
    for (int i = 0; i < m->n; i++) {
        const Candidate *k = &cand[i];
        double step = 1.0 + weight[i] * ((k->tok == tok ? bonus : 0.0) - scale);
        w->match[k->other][k->bucket] *= step;
        w->source[k->source] *= step;
        w->rank[k->rank] *= step;
    }
    *null *= 1.0 + ((right > 0.0 ? 0.0 : VOTE_RATE) - none * scale);
}
