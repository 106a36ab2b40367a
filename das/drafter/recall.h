/* Drafts that use the sampling noise: turns occurrences with remembered distributions (distributions.h) into the tokens
 * that the noise picks, and their probabilities.
 *
 * The verifier emits argmax(log p + noise), and the noise is known beforehand. p has two estimates. The mixture: each
 * occurrence votes as in mix.h, but its weight is shared among the tokens of its distribution. The nearest: the
 * distribution of the longest match only, the newest of equals. A token's score is the sum of log mixture, log nearest
 * and noise, each times a weight that is learned for each bucket of the longest match: where matches are long, one
 * occurrence decides; where they are short, many do. A softmax over the scores of the BEST tokens and of "another token"
 * gives the draft's probabilities. Both models follow the gradient of the log-probability of the emitted token. */
#include "../noise.h"
#include "mix.h"

#define MAX_TOKENS (MAX_CAND * (PAIRS + 1))
#define RARE 22                      /* level of a token that a distribution does not list */

/* Weights of a token's score, and of the score of "another token". */
enum { BY_SHARE, BY_NEAREST, BY_NOISE, BY_UNLISTED, NONE_BIAS, RECALL };

/* Mirrored in native.py. */
typedef struct { Factors f; double recall[BUCKETS][RECALL]; } NoisyWeights;

static const double RECALL_RATE = 0.002;

static double prob_of[UNLISTED + 1];                  /* [level], filled once */
static void fill_probs(void) {
    for (int i = 0; i <= UNLISTED; i++) prob_of[i] = exp_of(-0.25 * i);
}

/* The votes of a position's candidates: the distinct tokens, and the sum of the weights that went to each. */
typedef struct {
    int32_t tok[MAX_TOKENS];
    double share[MAX_TOKENS], missing, all;           /* missing: weight that went to no token; all: sum of all weights */
    uint16_t slots[4 * MAX_TOKENS];                   /* a hash table of the tokens */
    int n, bits;
} Shares;

static void share_with(Shares *s, int32_t tok, double weight) {
    uint32_t at = (uint32_t)tok * 0x9E3779B1u >> (32 - s->bits);
    while (s->slots[at] != UINT16_MAX && s->tok[s->slots[at]] != tok) at = (at + 1) & ((1u << s->bits) - 1);
    if (s->slots[at] == UINT16_MAX) {
        s->slots[at] = (uint16_t)s->n;
        s->tok[s->n] = tok;
        s->share[s->n++] = 0.0;
    }
    s->share[s->slots[at]] += weight;
}

/* Shares each candidate's weight among the tokens of its distribution. Without one, its next token gets the weight. */
static void share_votes(const Factors *w, const Candidate *cand, int n, uint32_t (*pairs)[PAIRS], Shares *s) {
    s->n = 0, s->bits = 2, s->missing = s->all = 0.0;
    while (1 << s->bits < 2 * n * (PAIRS + 1)) s->bits++;
    memset(s->slots, 0xFF, sizeof *s->slots << s->bits);
    for (int i = 0; i < n; i++) {
        double weight = weight_of(w, &cand[i]), listed = 0.0;
        s->all += weight;
        if (pairs[i][0] == NO_PAIR) { share_with(s, cand[i].tok, weight); continue; }
        for (int k = 0; k < PAIRS && pairs[i][k] != NO_PAIR; k++) {
            double p = prob_of[level_of(pairs[i][k])];
            share_with(s, token_of(pairs[i][k]), weight * p);
            listed += p;
        }
        if (listed < 1.0) s->missing += weight * (1.0 - listed);
    }
}

/* Returns the candidate with the longest match (the newest of equals) among those with distributions; -1: none. */
static int nearest_of(const Candidate *cand, int n, uint32_t (*pairs)[PAIRS]) {
    int place = -1;
    for (int i = 0; i < n; i++)
        if (pairs[i][0] != NO_PAIR && (place < 0 || cand[i].match > cand[place].match)) place = i;
    return place;
}

/* Returns a token's log-prob in a distribution. */
static double log_prob(const uint32_t *pairs, int32_t tok) {
    for (int k = 0; k < PAIRS && pairs[k] != NO_PAIR; k++) if (token_of(pairs[k]) == tok) return -0.25 * level_of(pairs[k]);
    return -0.25 * RARE;
}

/* Returns the log of the total probability of the tokens that a distribution does not list. */
static double log_unlisted(const uint32_t *pairs) {
    double missing = 1.0;
    for (int k = 0; k < PAIRS && pairs[k] != NO_PAIR; k++) missing -= prob_of[level_of(pairs[k])];
    return missing > prob_of[RARE] ? log_of(missing) : -0.25 * RARE;
}

/* Scores the tokens, keeps the BEST, and turns their scores into probabilities. key: the position's noise. */
static void score_tokens(const double *v, const Shares *s, const uint32_t *nearest, uint64_t key, Mixed *m) {
    double score[BEST];
    float noises[MAX_TOKENS];
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    for (int j = 0; j < s->n; j++) noises[j] = gumbel(key0, key1, (uint32_t)s->tok[j]);   /* side by side */
    m->n_best = 0;
    Lanes shares = {0};
    for (int j = 0; j < s->n; j++) {
        if (j % BEST == 0) {                           /* the logs of BEST tokens at once */
            for (int b = 0; b < BEST; b++) shares[b] = j + b < s->n ? s->share[j + b] / s->all : 1.0;
            shares = log_lanes(shares);
        }
        double share = shares[j % BEST], near = nearest ? log_prob(nearest, s->tok[j]) : 0.0, noise = noises[j];
        double x = v[BY_SHARE] * share + v[BY_NEAREST] * near + v[BY_NOISE] * noise;
        int b = m->n_best;
        if (b == BEST && x <= score[BEST - 1]) continue;
        if (b < BEST) m->n_best++; else b--;
        for (; b && score[b - 1] < x; b--) {
            score[b] = score[b - 1];
            m->best[b] = m->best[b - 1];
            for (int f = BY_SHARE; f <= BY_NOISE; f++) m->f[f][b] = m->f[f][b - 1];
        }
        score[b] = x;
        m->best[b] = s->tok[j];
        m->f[BY_SHARE][b] = share; m->f[BY_NEAREST][b] = near; m->f[BY_NOISE][b] = noise;
    }
    Lanes scores = {0};
    for (int b = 0; b < m->n_best; b++) scores[b] = score[b];
    normalize(m, scores, v[BY_SHARE] * m->f_none + v[BY_UNLISTED] * m->unlisted + v[NONE_BIAS]);
}

/* Ranks n > 0 candidates and mixes them and the noise into probabilities. pairs: the candidates' distributions. */
static void foresee(const NoisyWeights *w, Candidate *cand, int n, uint32_t (*pairs)[PAIRS], uint64_t key, Mixed *m) {
    int32_t seen[BUCKETS + 1] = {0}, longest = 0;
    for (int i = 0; i < n; i++) {
        set_rank(&cand[i], seen);
        if (!cand[i].cross_problem && cand[i].match > longest) longest = cand[i].match;
    }
    Shares s;
    share_votes(&w->f, cand, n, pairs, &s);
    m->n = n;
    m->top = BUCKET_OF[longest];
    m->variety = s.n < VARIETIES ? s.n : VARIETIES - 1;
    m->place = nearest_of(cand, n, pairs);
    const uint32_t *nearest = m->place < 0 ? NULL : pairs[m->place];
    double none = w->f.none[m->top][m->variety];
    s.all += none;
    m->f_none = log_of((none + s.missing) / s.all);
    m->unlisted = nearest ? log_unlisted(nearest) : 0.0;
    score_tokens(w->recall[m->top], &s, nearest, key, m);
}

/* Takes one step up the gradient of log P(tok), for a position that was foreseen from these candidates. */
static void learn_foreseen(NoisyWeights *w, const Candidate *cand, uint32_t (*pairs)[PAIRS], const Mixed *m, int32_t tok) {
    double *v = w->recall[m->top], correct[MAX_CAND];
    int hit = 0;
    for (int b = 0; b < m->n_best; b++) {
        double g = RECALL_RATE * ((m->best[b] == tok) - m->p[b]);
        hit |= m->best[b] == tok;
        for (int f = BY_SHARE; f <= BY_NOISE; f++) v[f] += g * m->f[f][b];
    }
    double g = RECALL_RATE * (!hit - m->p_none);
    v[BY_SHARE] += g * m->f_none;
    v[BY_UNLISTED] += g * m->unlisted;
    v[NONE_BIAS] += g;
    for (int i = 0; i < m->n; i++) {
        correct[i] = 0.0;
        if (pairs[i][0] == NO_PAIR) correct[i] = cand[i].tok == tok;
        else for (int k = 0; k < PAIRS && pairs[i][k] != NO_PAIR; k++)
            if (token_of(pairs[i][k]) == tok) correct[i] = prob_of[level_of(pairs[i][k])];
    }
    learn_votes(&w->f, cand, m, correct);
}
