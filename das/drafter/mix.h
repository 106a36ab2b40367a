/* What occurrences vote for. Each occurrence (candidate) votes with a weight that is match * source * rank, three learned
 * factors; another learned weight stands for "none of these tokens". recall.h turns the votes into probabilities. A
 * draft continues only where its tokens look likely, so probabilities late in a draft are too high on average. A factor
 * on the odds, learned for each position, corrects that.
 *
 * Compile with -ffp-contract=off and without -ffast-math: tests/drafter/reference.py computes the same doubles in the
 * same order. */
#include <math.h>

#include "exp_log.h"

#define BUCKETS 16                   /* buckets of match lengths */
#define SOURCES 19                   /* 0: own text; 1: live or this tick; 2-17: by age in ticks; 18: other problems */
#define RANKS 11
#define VARIETIES 8
#define BEST 4                       /* tokens that get a probability of their own */
#define FEATURES 3                   /* of a token: BY_SHARE, BY_NEAREST, BY_NOISE (recall.h) */
#define CROSS_PROBLEM (SOURCES - 1)
#define MAX_CAND 512
#define TRACE 8                      /* drafted positions that are learned from */
#define POSITIONS 16                 /* drafted positions with a correction; the last one serves all later positions */

/* Mirrored in native.py. The factors are positive. */
typedef struct {
    double match[2][BUCKETS];        /* by bucket; [1]: for candidates from other problems */
    double source[SOURCES];
    double rank[RANKS];              /* by the number of newer candidates in the same bucket */
    double none[BUCKETS][VARIETIES]; /* by the longest match's bucket and the number of distinct tokens */
    double late[POSITIONS];          /* factor on the odds, by position in the draft */
} Factors;

static const double VOTE_RATE = 0.005, LATE_RATE = 0.01;

/* An occurrence: its next token `tok` is at position pos, and `match` tokens before it equal the context's end. */
typedef struct { uint32_t pos; int32_t tok, match; uint8_t source, rank, bucket, cross_problem; } Candidate;
/* One drafted position: the state in which it was drafted. */
typedef struct {
    int32_t n, n_best, top, variety;    /* candidates, best tokens, longest match's bucket, distinct tokens (capped) */
    int32_t best[BEST];
    Lanes f[FEATURES], p;               /* features and probability, of each best token */
    double f_none, p_none;              /* of "none of them"; f_none is the log of its share */
    double unlisted;                    /* log of what the nearest distribution does not list */
    int32_t place;                      /* the nearest candidate, or -1 */
} Mixed;

static const uint8_t BUCKET_OF[33] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  9,  10, 10, 11, 11, 11, 11,
                                      12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 14, 14, 14, 15};
static const uint8_t RANK_OF[24] = {0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9};

static double weight_of(const Factors *w, const Candidate *k) {
    return w->match[k->cross_problem][k->bucket] * w->source[k->source] * w->rank[k->rank];
}

/* Turns scores into probabilities of the best tokens and of "none of them". */
static void normalize(Mixed *m, Lanes score, double none_score) {
    double sum, highest = none_score;
    for (int b = 0; b < m->n_best; b++) if (score[b] > highest) highest = score[b];
    m->p_none = sum = exp_of(none_score - highest);
    m->p = exp_lanes(score - highest);
    for (int b = 0; b < m->n_best; b++) sum += m->p[b];
    m->p /= sum;
    m->p_none /= sum;
}

/* Sets a candidate's bucket and rank. seen: the number of newer candidates in each bucket; the last entry is for other
 * problems. */
static void set_rank(Candidate *k, int32_t seen[BUCKETS + 1]) {
    k->bucket = BUCKET_OF[k->match];
    int newer = seen[k->cross_problem ? BUCKETS : k->bucket]++;
    k->rank = newer < 24 ? RANK_OF[newer] : RANKS - 1;
}

/* The index of the likeliest best token. On ties, the larger share wins. */
static int likeliest(const Mixed *m) {
    int best = 0;
    for (int b = 1; b < m->n_best; b++) if (m->p[b] > m->p[best]) best = b;
    return best;
}

/* Takes one step up the gradient of the votes' log P(tok). correct: the part of each candidate's vote that went to tok. */
static void learn_votes(Factors *w, const Candidate *cand, const Mixed *m, const double *correct) {
    double *none = &w->none[m->top][m->variety];
    double weight[MAX_CAND], none_before = *none, all = none_before, correct_weight = 0.0;
    for (int i = 0; i < m->n; i++) {
        weight[i] = weight_of(w, &cand[i]);
        all += weight[i];
        correct_weight += weight[i] * correct[i];
    }
    double scale = VOTE_RATE / all, bonus = correct_weight > 0.0 ? VOTE_RATE / correct_weight : 0.0;
    for (int i = 0; i < m->n; i++) {
        const Candidate *k = &cand[i];
        double step = 1.0 + weight[i] * (correct[i] * bonus - scale);
        w->match[k->cross_problem][k->bucket] *= step;
        w->source[k->source] *= step;
        w->rank[k->rank] *= step;
    }
    *none *= 1.0 + ((correct_weight > 0.0 ? 0.0 : VOTE_RATE) - none_before * scale);
}

/* Returns the likeliest token's probability at a position of the draft, with corrected odds. */
static double corrected(const Factors *w, int64_t position, double p) {
    double odds = p * w->late[position < POSITIONS ? position : POSITIONS - 1];
    return odds / (odds + (1.0 - p));
}

/* Takes a gradient step for a position's correction. p: the corrected probability. */
static void learn_late(Factors *w, int32_t position, double p, int accepted) {
    w->late[position] *= 1.0 + LATE_RATE * (accepted - p);
}
