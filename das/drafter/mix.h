/* Turns occurrences into a probability: two small models that learn online from the emitted tokens.
 *
 * Votes: each occurrence (candidate) votes for the token that followed it. Its weight is match * source * rank,
 * three learned factors. Another learned weight stands for "none of these tokens". A token's share is the sum of its
 * candidates' weights over the sum of all weights.
 * Mixture: a softmax over the BEST tokens with the largest shares and "another token". Its features are the tokens'
 * shares and counts of their occurrences; its weights depend on the longest match. It gives the draft's probabilities.
 * Both models follow the gradient of the log-probability of the emitted token. A draft continues only where its
 * tokens look likely, so probabilities late in a draft are too high on average. A factor on the odds, learned for
 * each position, corrects that.
 *
 * Compile with -ffp-contract=off and without -ffast-math: tests/drafter/reference.py computes the same doubles in the
 * same order. */
#include <math.h>

#include "exp_log.h"

#define BUCKETS 16                   /* buckets of match lengths */
#define SOURCES 19                   /* 0: own text; 1: live or this tick; 2-17: by age in ticks; 18: other problems */
#define RANKS 11
#define VARIETIES 8
#define BEST 4                       /* tokens that the mixture considers */
#define N_COUNTS 7                   /* number of match lengths at which occurrences are counted */
#define N_OWN 4                      /* the same for the request's own text */
#define COUNTS_FROM 6                /* first count feature, two for each length; single features precede it */
#define OWN_FROM (COUNTS_FROM + 2 * N_COUNTS)
#define FEATURES (OWN_FROM + 2 * N_OWN)
#define CROSS_PROBLEM (SOURCES - 1)
#define MAX_CAND 512
#define TRACE 8                      /* drafted positions that votes and mixture learn from */
#define POSITIONS 16                 /* drafted positions with a correction; the last one serves all later positions */

/* Mirrored in native.py. The factors are positive; the weights of mix are additive. */
typedef struct {
    double match[2][BUCKETS];        /* by bucket; [1]: for candidates from other problems */
    double source[SOURCES];
    double rank[RANKS];              /* by the number of newer candidates in the same bucket */
    double none[BUCKETS][VARIETIES]; /* by the longest match's bucket and the number of distinct tokens */
    double late[POSITIONS];          /* factor on the odds, by position in the draft */
} Factors;
typedef struct { Factors f; double mix[BUCKETS][FEATURES + 1]; } Weights;

static const double VOTE_RATE = 0.005, MIX_RATE = 0.002, LATE_RATE = 0.01;
/* Occurrences are counted that match at least 1, 2, 3, 4, 6, 9, 14 tokens (in the own text: 1, 2, 3, 5). These tables
 * give, for each match length, how many of these thresholds it reaches. */
static const uint8_t REACHED[33] = {0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
                                    7, 7, 7, 7, 7, 7, 7, 7};
static const uint8_t REACHED_OWN[33] = {0, 1, 2, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4,
                                        4, 4, 4, 4, 4, 4, 4, 4, 4};

/* An occurrence: its next token `tok` is at position pos, and `match` tokens before it equal the context's end. */
typedef struct { uint32_t pos; int32_t tok, match; uint8_t source, rank, bucket, cross_problem; } Candidate;
/* One drafted position: the state in which it was drafted. */
typedef struct {
    int32_t n, n_best, top, variety;    /* candidates, best tokens, longest match's bucket, distinct tokens (capped) */
    int32_t levels, own_levels;         /* thresholds that any candidate reaches; later features are unset */
    int32_t best[BEST];
    Lanes f[FEATURES], p;               /* features and probability, of each best token */
    double f_none, p_none;              /* of "none of them"; f_none is the log of its share */
    double unlisted;                    /* recall.h only: log of what the nearest distribution does not list */
    int32_t place;                      /* recall.h only: the longest match, the newest of equals, of those with
                                           distributions, or -1 */
} Mixed;
/* A cache of the mixture's results for positions with a single candidate, as two of five drafted positions are. The
 * results depend only on match length and source. Weights do not change during a call, so the cache lasts for one
 * call. */
typedef struct {
    uint32_t known[33];                 /* [match]: one bit for each source */
    struct { double f, p, f_none, p_none; } answer[33][SOURCES];
} Singles;

static const uint8_t BUCKET_OF[33] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  9,  10, 10, 11, 11, 11, 11,
                                      12, 12, 12, 12, 13, 13, 13, 13, 14, 14, 14, 14, 14, 14, 14, 15};
static const uint8_t RANK_OF[24] = {0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9};

static double log1p_of[MAX_CAND + 1];                 /* log(1 + count), filled once */
static void fill_logs(void) {
    for (int i = 0; i <= MAX_CAND; i++) log1p_of[i] = log(1.0 + i);
}

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

/* Scores the best tokens by their features. */
static void softmax(const Weights *w, Mixed *m) {
    const double *v = w->mix[m->top];
    Lanes score = {0};
    for (int i = 0; i < COUNTS_FROM + 2 * m->levels; i++) score += v[i] * m->f[i];
    for (int i = OWN_FROM; i < OWN_FROM + 2 * m->own_levels; i++) score += v[i] * m->f[i];
    normalize(m, score, v[0] * m->f_none + v[FEATURES]);
}

/* Sets the features of a single candidate, except its share. */
static void single_features(const Candidate *k, Mixed *m) {
    m->levels = k->cross_problem ? 0 : REACHED[k->match];
    m->own_levels = k->source ? 0 : REACHED_OWN[k->match];
    m->f[1] = (Lanes){1.0};
    m->f[2] = (Lanes){k->source == 0};
    m->f[3] = (Lanes){log1p_of[k->match] - 1.5};
    m->f[4] = (Lanes){1.0};
    m->f[5] = (Lanes){k->bucket == m->top};
    for (int l = 0; l < m->levels; l++) {
        m->f[COUNTS_FROM + 2 * l] = (Lanes){log1p_of[1]};
        m->f[COUNTS_FROM + 2 * l + 1] = (Lanes){1.0};
    }
    for (int l = 0; l < m->own_levels; l++) {
        m->f[OWN_FROM + 2 * l] = (Lanes){log1p_of[1]};
        m->f[OWN_FROM + 2 * l + 1] = (Lanes){1.0};
    }
}

/* Mixes a single candidate. If its result is cached, the features are left to `learn`, because few positions are
 * learned from. */
static void mix_single(const Weights *w, Candidate *k, Mixed *m, Singles *singles) {
    k->bucket = BUCKET_OF[k->match];
    k->rank = RANK_OF[0];
    m->n = m->n_best = m->variety = 1;
    m->top = k->cross_problem ? 0 : k->bucket;
    m->best[0] = k->tok;
    if (singles->known[k->match] >> k->source & 1) {
        m->f[0][0] = singles->answer[k->match][k->source].f;
        m->p[0] = singles->answer[k->match][k->source].p;
        m->f_none = singles->answer[k->match][k->source].f_none;
        m->p_none = singles->answer[k->match][k->source].p_none;
        return;
    }
    double weight = weight_of(&w->f, k), none = w->f.none[m->top][1], all = weight + none;
    single_features(k, m);
    m->f[0] = (Lanes){log_of(weight / all)};
    m->f_none = log_of(none / all);
    softmax(w, m);
    singles->known[k->match] |= 1u << k->source;
    singles->answer[k->match][k->source].f = m->f[0][0];
    singles->answer[k->match][k->source].p = m->p[0];
    singles->answer[k->match][k->source].f_none = m->f_none;
    singles->answer[k->match][k->source].p_none = m->p_none;
}

/* The distinct tokens that a position's candidates vote for, and the candidates' votes. */
typedef struct {
    struct { int32_t tok; uint8_t longest, newest; } token[MAX_CAND];  /* longest match; newest of any bucket */
    double share[MAX_CAND];          /* [token]: sum of its candidates' weights */
    uint16_t token_of[MAX_CAND];     /* [candidate]: its index into token */
    int distinct, own_token;         /* number of tokens; vote of the own text's newest candidate, or -1 */
    int longest, own_longest;        /* longest match in the problem; in the request's own text */
    double all;                      /* sum of all candidates' weights */
} Votes;

/* Sets a candidate's bucket and rank. seen: the number of newer candidates in each bucket; the last entry is for other
 * problems. Returns this number for the candidate's bucket. */
static int set_rank(Candidate *k, int32_t seen[BUCKETS + 1]) {
    k->bucket = BUCKET_OF[k->match];
    int newer = seen[k->cross_problem ? BUCKETS : k->bucket]++;
    k->rank = newer < 24 ? RANK_OF[newer] : RANKS - 1;
    return newer;
}

/* Sets the candidates' buckets and ranks, and sums their votes. n > 1. */
static void count_votes(const Factors *w, Candidate *cand, int n, Votes *v) {
    int32_t seen[BUCKETS + 1] = {0};
    uint16_t slots[2 * MAX_CAND];                      /* a hash table of the distinct tokens */
    int bits = 2, distinct = 0, own_token = -1, longest = 0, own_longest = 0;
    double all = 0.0;
    while (1 << bits < 2 * n) bits++;
    memset(slots, 0xFF, sizeof *slots << bits);
    for (int i = 0; i < n; i++) {
        Candidate *k = &cand[i];
        int newer = set_rank(k, seen);
        double weight = weight_of(w, k);
        all += weight;
        uint32_t at = (uint32_t)k->tok * 0x9E3779B1u >> (32 - bits);
        while (slots[at] != UINT16_MAX && v->token[slots[at]].tok != k->tok) at = (at + 1) & ((1u << bits) - 1);
        int j = slots[at];
        if (j == UINT16_MAX) {
            slots[at] = (uint16_t)(j = distinct++);
            v->token[j].tok = k->tok;
            v->token[j].longest = v->token[j].newest = 0;
            v->share[j] = 0.0;
        }
        v->token_of[i] = (uint16_t)j;
        v->share[j] += weight;
        if (k->match > v->token[j].longest) v->token[j].longest = (uint8_t)k->match;
        v->token[j].newest |= newer == 0;
        if (k->cross_problem) continue;
        if (k->match > longest) longest = k->match;
        if (k->source) continue;
        if (own_token < 0) own_token = j;
        if (k->match > own_longest) own_longest = k->match;
    }
    v->distinct = distinct; v->own_token = own_token;
    v->longest = longest; v->own_longest = own_longest;
    v->all = all;
}

/* Chooses the best tokens and sets their single features. lane [token]: its index among the best, BEST for all others.
 * The chosen tokens' shares are overwritten. */
static void choose_best(Votes *v, Mixed *m, uint8_t *lane) {
    int distinct = v->distinct;
    m->n_best = distinct < BEST ? distinct : BEST;
    for (int i = 1; i < COUNTS_FROM; i++) m->f[i] = (Lanes){0};
    Lanes shares = {1.0, 1.0, 1.0, 1.0};
    memset(lane, BEST, (size_t)distinct);
    for (int b = 0; b < m->n_best; b++) {
        int j = 0;
        double largest = v->share[0];
        for (int i = 1; i < distinct; i++) {           /* without branches */
            int larger = v->share[i] > largest;
            j = larger ? i : j;
            largest = larger ? v->share[i] : largest;
        }
        Lanes *f = m->f;
        m->best[b] = v->token[j].tok;
        lane[j] = (uint8_t)b;
        shares[b] = largest / v->all;
        f[1][b] = v->token[j].newest;
        f[2][b] = v->own_token == j;
        f[3][b] = log1p_of[v->token[j].longest] - 1.5;
        f[4][b] = b == 0;
        f[5][b] = BUCKET_OF[v->token[j].longest] == m->top;
        v->share[j] = -1.0;
    }
    m->f[0] = log_lanes(shares);
}

/* Sets the count features, from the longest threshold down. count [lane][l]: number of candidates that reach exactly l
 * thresholds; lane BEST: candidates of all tokens that are not among the best. */
static void count_features(const uint16_t (*count)[8], int levels, int n_best, Lanes *f) {
    int reached[BEST + 1] = {0};
    for (int l = levels; l > 0; l--) {
        int total = 0;
        for (int b = 0; b <= BEST; b++) total += reached[b] += count[b][l];
        Lanes counted = {0}, is_all = {0};
        for (int b = 0; b < n_best; b++) {
            counted[b] = (reached[b] ? 1.0 : -0.5) * log1p_of[reached[b] ? reached[b] : total];
            is_all[b] = reached[b] == total;
        }
        f[2 * l - 2] = counted;
        f[2 * l - 1] = is_all;
    }
}

/* Ranks n > 0 candidates and mixes their votes into probabilities. */
static void mix(const Weights *w, Candidate *cand, int n, Mixed *m, Singles *singles) {
    if (n == 1) { mix_single(w, cand, m, singles); return; }
    Votes v;
    count_votes(&w->f, cand, n, &v);
    m->n = n;
    m->top = BUCKET_OF[v.longest];
    m->variety = v.distinct < VARIETIES ? v.distinct : VARIETIES - 1;
    double none = w->f.none[m->top][m->variety];
    v.all += none;
    uint8_t lane[MAX_CAND];
    choose_best(&v, m, lane);
    uint16_t count[BEST + 1][8] = {0}, count_own[BEST + 1][8] = {0};
    for (int i = 0; i < n; i++) {
        const Candidate *k = &cand[i];
        int b = lane[v.token_of[i]];
        count[b][k->cross_problem ? 0 : REACHED[k->match]]++;
        count_own[b][k->source ? 0 : REACHED_OWN[k->match]]++;
    }
    m->levels = REACHED[v.longest];
    m->own_levels = REACHED_OWN[v.own_longest];
    count_features(count, m->levels, m->n_best, m->f + COUNTS_FROM);
    count_features(count_own, m->own_levels, m->n_best, m->f + OWN_FROM);
    m->f_none = log_of(none / v.all);
    softmax(w, m);
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

/* Takes one step up the gradient of log P(tok), for a position that was mixed from these candidates. */
static void learn(Weights *w, const Candidate *cand, Mixed *m, int32_t tok) {
    if (m->n == 1) single_features(cand, m);
    double *v = w->mix[m->top], correct[MAX_CAND];
    int hit = 0;
    for (int b = 0; b < m->n_best; b++) {
        int is_emitted = m->best[b] == tok;
        double g = MIX_RATE * (is_emitted - m->p[b]);
        hit |= is_emitted;
        for (int i = 0; i < COUNTS_FROM + 2 * m->levels; i++) v[i] += g * m->f[i][b];
        for (int i = OWN_FROM; i < OWN_FROM + 2 * m->own_levels; i++) v[i] += g * m->f[i][b];
    }
    double g = MIX_RATE * (!hit - m->p_none);
    v[0] += g * m->f_none;
    v[FEATURES] += g;
    for (int i = 0; i < m->n; i++) correct[i] = cand[i].tok == tok;
    learn_votes(&w->f, cand, m, correct);
}

/* The factor that corrects the odds of the likeliest token at a position of the draft. */
static double late_factor(const Factors *w, int64_t position) {
    return w->late[position < POSITIONS ? position : POSITIONS - 1];
}
/* Returns the likeliest token's probability at a position of the draft, with corrected odds. */
static double corrected(const Factors *w, int64_t position, double p) {
    double odds = p * late_factor(w, position);
    return odds / (odds + (1.0 - p));
}

/* Takes a gradient step for a position's correction. p: the corrected probability. */
static void learn_late(Factors *w, int32_t position, double p, int accepted) {
    w->late[position] *= 1.0 + LATE_RATE * (accepted - p);
}
