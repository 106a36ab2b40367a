/* Turns occurrences into the next token's likeliest values and their probabilities.
 *
 * The verifier emits argmax(log p + noise). p has two estimates. The mixture: each occurrence votes as in mix.h, but its
 * weight is shared among the tokens of its distribution (distributions.h); without one, the token that followed it gets
 * the weight. The nearest: the distribution of the longest match only, the newest of equals. The noise is known where
 * the request's seed is and distributions are remembered; elsewhere it counts as 0, and an occurrence without a
 * distribution may be the nearest, too. A token's score is the sum of log mixture, log nearest and noise, each times a
 * weight that is learned for each bucket of the longest match: where matches are long, one occurrence decides; where
 * they are short, many do. A softmax over the scores of the BEST tokens and of "another token" gives the draft's
 * probabilities. Votes and scores follow the gradient of the log-probability of the emitted token. */
#include "../noise.h"
#include "mix.h"

#define MAX_TOKENS (MAX_CAND * (PAIRS + 1))
#define SIDE 8                       /* tokens that are scored side by side */
#define RARE 22                      /* level of a token that a distribution does not list */

/* Weights of a token's score, and of the score of "another token". */
enum { BY_SHARE, BY_NEAREST, BY_NOISE, BY_UNLISTED, NONE_BIAS, RECALL };

/* Mirrored in native.py. */
typedef struct { Factors f; double recall[BUCKETS][RECALL]; } Weights;

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
    while (1 << s->bits < 2 * n * (pairs ? PAIRS + 1 : 1)) s->bits++;
    memset(s->slots, 0xFF, sizeof *s->slots << s->bits);
    for (int i = 0; i < n; i++) {
        double weight = weight_of(w, &cand[i]), listed = 0.0;
        s->all += weight;
        if (!pairs || pairs[i][0] == NO_PAIR) { share_with(s, cand[i].tok, weight); continue; }
        for (int k = 0; k < PAIRS && pairs[i][k] != NO_PAIR; k++) {
            double p = prob_of[level_of(pairs[i][k])];
            share_with(s, token_of(pairs[i][k]), weight * p);
            listed += p;
        }
        if (listed < 1.0) s->missing += weight * (1.0 - listed);
    }
    for (int j = s->n; j % SIDE; j++) s->tok[j] = 0, s->share[j] = s->all;   /* scored beside the others, and ignored */
}

/* Returns the log of the total probability of the tokens that a distribution does not list. */
static double log_unlisted(const uint32_t *pairs) {
    double missing = 1.0;
    for (int k = 0; k < PAIRS && pairs[k] != NO_PAIR; k++) missing -= prob_of[level_of(pairs[k])];
    return missing > prob_of[RARE] ? log_of(missing) : -0.25 * RARE;
}

/* The features and the score of each token. Tokens are scored SIDE at a time, because the processor then computes their
 * logs and noises side by side. */
typedef struct { double by[BY_NOISE + 1][MAX_TOKENS], score[MAX_TOKENS]; } Scores;

/* The nearest place: its distribution, or NULL, and then the token that followed, or NO_TOKEN. */
typedef struct { const uint32_t *pairs; int32_t tok; } Nearest;

/* Scores tokens `from` to from + SIDE. key: the position's noise, or NULL. */
static void score_side(const double *v, const Shares *s, const Nearest *nearest, const uint64_t *key, int from,
                       Scores *out) {
    const int32_t *tok = s->tok + from;
    double near[SIDE], share[SIDE];
    float noise[SIDE] = {0};
    if (key) {
        uint32_t key0 = (uint32_t)*key, key1 = (uint32_t)(*key >> 32);
        for (int j = 0; j < SIDE; j++) noise[j] = gumbel(key0, key1, (uint32_t)tok[j]);
    }
    const uint32_t *pairs = nearest->pairs;
    int is_known = pairs || nearest->tok != NO_TOKEN;
    for (int j = 0; j < SIDE; j++) near[j] = is_known && tok[j] != nearest->tok ? -0.25 * RARE : 0.0;
    for (int k = PAIRS - 1; pairs && k >= 0; k--) {    /* if a token is listed twice, its first pair counts */
        if (pairs[k] == NO_PAIR) continue;
        for (int j = 0; j < SIDE; j++)
            near[j] = tok[j] == token_of(pairs[k]) ? -0.25 * level_of(pairs[k]) : near[j];
    }
    for (int j = 0; j < SIDE; j++) share[j] = s->share[from + j] / s->all;
    for (int j = 0; j < SIDE; j += BEST) *(Lanes *)(share + j) = log_lanes(*(Lanes *)(share + j));
    for (int j = 0; j < SIDE; j++) {
        out->by[BY_SHARE][from + j] = share[j];
        out->by[BY_NEAREST][from + j] = near[j];
        out->by[BY_NOISE][from + j] = noise[j];
        out->score[from + j] = v[BY_SHARE] * share[j] + v[BY_NEAREST] * near[j] + v[BY_NOISE] * noise[j];
    }
}

/* Scores the tokens, keeps the BEST, and turns their scores into probabilities. */
static void score_tokens(const double *v, const Shares *s, const Nearest *nearest, const uint64_t *key, Mixed *m) {
    Scores all;
    int place[BEST];
    for (int from = 0; from < s->n; from += SIDE) score_side(v, s, nearest, key, from, &all);
    m->n_best = 0;
    for (int j = 0; j < s->n; j++) {
        int b = m->n_best;
        if (b == BEST && all.score[j] <= all.score[place[BEST - 1]]) continue;
        if (b < BEST) m->n_best++; else b--;
        for (; b && all.score[place[b - 1]] < all.score[j]; b--) place[b] = place[b - 1];
        place[b] = j;
    }
    Lanes scores = {0};
    for (int b = 0; b < m->n_best; b++) {
        m->best[b] = s->tok[place[b]];
        scores[b] = all.score[place[b]];
        for (int f = BY_SHARE; f <= BY_NOISE; f++) m->f[f][b] = all.by[f][place[b]];
    }
    normalize(m, scores, v[BY_SHARE] * m->f_none + v[BY_UNLISTED] * m->unlisted + v[NONE_BIAS]);
}

/* Ranks n > 0 candidates and turns them and the noise into probabilities. pairs: the candidates' distributions, or NULL.
 * key: the position's noise, or NULL if it is unknown. */
static void foresee(const Weights *w, Candidate *cand, int n, uint32_t (*pairs)[PAIRS], const uint64_t *key, Mixed *m) {
    int32_t seen[BUCKETS + 1] = {0}, longest = 0;
    m->place = -1;
    for (int i = 0; i < n; i++) {
        set_rank(&cand[i], seen);
        if (!cand[i].cross_problem && cand[i].match > longest) longest = cand[i].match;
        int counts = !key || (pairs && pairs[i][0] != NO_PAIR);
        if (counts && (m->place < 0 || cand[i].match > cand[m->place].match)) m->place = i;
    }
    Shares s;
    share_votes(&w->f, cand, n, pairs, &s);
    m->n = n;
    m->top = BUCKET_OF[longest];
    m->variety = s.n < VARIETIES ? s.n : VARIETIES - 1;
    Nearest nearest = {NULL, NO_TOKEN};
    if (m->place >= 0 && pairs && pairs[m->place][0] != NO_PAIR) nearest.pairs = pairs[m->place];
    else if (m->place >= 0) nearest.tok = cand[m->place].tok;
    double none = w->f.none[m->top][m->variety];
    s.all += none;
    m->f_none = log_of((none + s.missing) / s.all);
    m->unlisted = nearest.pairs ? log_unlisted(nearest.pairs) : m->place < 0 ? 0.0 : -0.25 * RARE;
    score_tokens(w->recall[m->top], &s, &nearest, key, m);
}

/* Takes one step up the gradient of log P(tok), for a position that was foreseen from these candidates. */
static void learn(Weights *w, const Candidate *cand, uint32_t (*pairs)[PAIRS], const Mixed *m, int32_t tok) {
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
        if (!pairs || pairs[i][0] == NO_PAIR) correct[i] = cand[i].tok == tok;
        else for (int k = 0; k < PAIRS && pairs[i][k] != NO_PAIR; k++)
            if (token_of(pairs[i][k]) == tok) correct[i] = prob_of[level_of(pairs[i][k])];
    }
    learn_votes(&w->f, cand, m, correct);
}
