/* Drafting token by token, and learning from the drafts. */
#include "lookup.h"

#define BATCH 16                     /* requests drafted side by side */

/* The most candidates that a drafted position can have. */
static int32_t candidate_stride(const Drafter *d) { return d->c.max_candidates + d->c.cross_problem_candidates; }

/* Keeps the candidates that continue with tok and advances them by one token. Writes them to `out`, which may be
 * `cand`, and returns their number. */
static int follow(const Drafter *d, const Store *own, const Store *shared, const Candidate *cand, int n, int32_t tok,
                  Candidate *out) {
    uint16_t same[MAX_CAND];
    int n_same = 0, n_out = 0;
    for (int i = 0; i < n; i++) {                      /* without branches */
        same[n_same] = (uint16_t)i;
        n_same += cand[i].tok == tok;
    }
    for (int i = 0; i < n_same; i++) {
        Candidate k = cand[same[i]];
        const Store *s = k.cross_problem ? shared : own;
        if ((k.pos = step_on(s, k.pos)) == NONE || (k.tok = s->toks[k.pos]) == NO_TOKEN) continue;
        k.match += k.match < d->c.max_match;
        out[n_out++] = k;
    }
    return n_out;
}

/* One request's draft while it is being made. */
typedef struct {
    int32_t seq, *ctx;               /* ctx: recent tokens, then drafted ones */
    Trace *t;
    Candidate *cand;                 /* [n_cand] */
    uint32_t (*pairs)[PAIRS];        /* [n_cand]: the candidates' distributions, or NULL */
    int64_t position;                /* of the draft's first token in the response */
    int64_t len, limit;              /* tokens in ctx; tokens that may be drafted */
    double reach, floor;             /* P(the whole draft is accepted); its lower bound */
    int n_cand, needs_lookup, done;
    Lookup own, shared;              /* lookups in the problem's store, and in that of all problems' newest texts */
} Work;

/* Drafts use the sampling noise if distributions are remembered and the request's seed is known. */
static int knows_noise(const Trace *t) { return t->pairs && t->noisy; }
static const Factors *factors_for(const Drafter *d, const Trace *t) { return &d->w[knows_noise(t)].f; }

static void start_work(const Drafter *d, Work *w, int32_t seq, int64_t limit, double floor, int32_t *ctx) {
    const Seq *q = &d->x.seqs[seq];
    w->seq = seq; w->ctx = ctx; w->t = q->trace; w->cand = w->t->cand; w->t->n = 0;
    w->own.s = &d->x.stores[q->store]; w->own.cross_problem = 0;
    w->shared.s = &d->x.stores[d->shared_store]; w->shared.cross_problem = 1;
    w->len = tail(w->own.s, q, d->c.max_match, w->ctx);
    w->pairs = w->t->pairs; w->position = (int64_t)q->len - w->t->context;
    w->limit = limit; w->reach = 1.0;
    w->floor = floor > d->c.min_prob ? floor : d->c.min_prob;
    w->n_cand = 0; w->done = 0;
}

/* Runs the lookups of token j, stage by stage, for all requests that have no candidates left. n: at most BATCH. */
static void look_up(const Drafter *d, Work *work, int32_t n, int64_t j) {
    Lookup *lookups[2 * BATCH];
    int m = 0;
    for (int32_t r = 0; r < n; r++) {
        Work *w = &work[r];
        w->done |= j >= w->limit;
        w->needs_lookup = !w->done && !w->n_cand;
        if (!w->needs_lookup) continue;
        w->own.end = w->shared.end = w->ctx + w->len;
        w->own.limit = w->shared.limit = (int32_t)(w->len < d->c.max_match ? w->len : d->c.max_match);
        w->own.max_visits = j ? d->c.fallback_visits : knows_noise(w->t) ? d->c.places : MAX_VISITS;
        w->shared.max_visits = d->c.fallback_visits;
        lookups[m++] = &w->own;
        if (d->c.cross_problem_candidates) lookups[m++] = &w->shared;
    }
    for (int k = 0; k < m; k++) lookup_start(lookups[k]);
    for (int k = 0; k < m; k++) lookup_slots(lookups[k]);
    for (int k = 0; k < m; k++) lookup_heads(lookups[k]);
    for (int i = 0, goes_on = m; goes_on && i < MAX_VISITS; i++) {
        goes_on = 0;
        for (int k = 0; k < m; k++) goes_on |= lookup_step(d, lookups[k], i);
    }
}

/* Collects the candidates that a request's lookups found for token j. */
static void collect(const Drafter *d, Work *w, int64_t j) {
    int32_t room = d->c.max_candidates;
    if (knows_noise(w->t) && d->c.places < room) room = d->c.places;
    if (j && d->c.fallback_visits < room) room = d->c.fallback_visits;
    w->n_cand = lookup_collect(d, &w->own, w->seq, w->cand, room);
    w->n_cand += lookup_collect(d, &w->shared, w->seq, w->cand + w->n_cand, d->c.cross_problem_candidates);
}

/* Mixes a request's candidates for token j of its draft. */
static void mix_at(const Drafter *d, Work *w, int64_t j, Mixed *m) {
    for (int i = 0; w->pairs && i < w->n_cand; i++)
        recall_at(w->cand[i].cross_problem ? w->shared.s : w->own.s, w->cand[i].pos, w->pairs[i]);
    int known = knows_noise(w->t);
    uint64_t key = known ? noise_key(w->t->seed, w->position + j) : 0;
    foresee(&d->w[known], w->cand, w->n_cand, w->pairs, known ? &key : NULL, m);
}

/* Follows the candidates of a mixed position that continue with tok, and writes them to `out`. Returns their number, or 0
 * if occurrences must be looked up again: few agree with tok, and the nearest one is not among them. */
static int go_on(const Drafter *d, const Work *w, const Mixed *m, const Candidate *cand, int32_t tok, Candidate *out) {
    int leaves_nearest = knows_noise(w->t) && m->place >= 0 && cand[m->place].tok != tok;
    int n = follow(d, w->own.s, w->shared.s, cand, m->n, tok, out);
    return leaves_nearest && n <= d->c.agreeing ? 0 : n;
}

/* Drafts token j of a request's draft from its candidates, or ends the draft. */
static void draft_token(const Drafter *d, Work *w, int64_t j, int32_t *token, double *prob) {
    Mixed spare, *m = j < TRACE ? &w->t->mixed[j] : &spare;
    if (!w->n_cand) { w->done = 1; return; }
    mix_at(d, w, j, m);
    int b = likeliest(m);
    int32_t tok = m->best[b];
    double p = corrected(factors_for(d, w->t), j, m->p[b]);
    if (j < POSITIONS) {
        w->t->drafted[j] = (Drafted){p, tok};
        w->t->n = (int32_t)j + 1;
    }
    w->reach *= p;
    if (w->reach < w->floor) { w->done = 1; return; }
    *token = w->ctx[w->len++] = tok;
    *prob = p;
    int32_t on = j < TRACE ? w->t->stride : 0;         /* traced candidates must not be overwritten */
    w->n_cand = go_on(d, w, m, w->cand, tok, w->cand + on);
    w->cand += on;
    if (w->pairs) w->pairs += on;
}

/* Learns from the last draft's predictions and the emitted tokens, then drops the draft. */
static void learn_from_draft(Drafter *d, Trace *t, const int32_t *toks, int64_t n) {
    Weights *w = &d->w[knows_noise(t)];
    for (int32_t i = 0; i < t->n && i < n; i++) {
        int accepted = t->drafted[i].tok == toks[i];
        if (i < TRACE) {
            size_t row = (size_t)i * (size_t)t->stride;
            learn(w, t->cand + row, t->pairs ? t->pairs + row : NULL, &t->mixed[i], toks[i]);
        }
        learn_late(&w->f, i, t->drafted[i].prob, accepted);
        if (!accepted) break;
    }
    t->n = 0;
}
