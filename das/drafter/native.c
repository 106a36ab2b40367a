/* The history drafter's core. It looks up occurrences of the context's end in history, siblings, own text and other
 * problems (lookup.h), turns them into a token and its probability (mix.h), and follows them token by token.
 *
 * das/drafter/reference.py gives the same answers by brute force: change both together. Calls of das_propose for
 * different sequences may run at the same time; a function that changes anything runs alone. A lock ensures both.
 * Functions that return int return a value >= 0, or one of the negative codes of index.h. Handles come
 * from das_seq_new and das_share. Only das_propose may be called with the handle of a sequence that was freed. */
#define _POSIX_C_SOURCE 200809L      /* pthread_rwlock_t under -std=c11 */
#include <pthread.h>

#include "lookup.h"

#define BATCH 16                     /* requests drafted side by side */

/* ---- the lock ---- */

static pthread_rwlock_t *enter(Drafter *d, int exclusive) {
    pthread_mutex_lock(&d->turnstile);
    if (exclusive) pthread_rwlock_wrlock(&d->lock); else pthread_rwlock_rdlock(&d->lock);
    pthread_mutex_unlock(&d->turnstile);
    return &d->lock;
}
static void leave(pthread_rwlock_t **lock) { pthread_rwlock_unlock(*lock); }
/* Both hold the lock until the block ends. */
#define HOLD(d, exclusive) __attribute__((cleanup(leave), unused)) pthread_rwlock_t *held = enter(d, exclusive)
#define HOLD_EXCLUSIVE(d) HOLD(d, 1)
#define HOLD_SHARED(d) HOLD(d, 0)

/* ---- texts ---- */

static void clear(Drafter *d) {
    for (int32_t i = 0; i < d->x.n_seqs; i++) if (d->x.seqs[i].state != FREE) free(d->x.seqs[i].trace);
    for (int32_t i = 0; i < d->x.n_stores; i++) store_clear(&d->x.stores[i]);
    free(d->x.stores); free(d->x.seqs);
    d->x = (Index){.free_seq = -1, .free_store = -1, .generation = d->x.generation, .skip_own = d->c.exclude_own};
}

void das_free(Drafter *d) { clear(d); free(d); }

/* Forgets all texts and continues with these weights. */
int das_restart(Drafter *d, const Weights *weights) {
    HOLD_EXCLUSIVE(d);
    clear(d);
    d->w = *weights;
    d->tick = 0;
    return d->shared_store = store_new(&d->x);
}

Drafter *das_new(const Config *config) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_logs);
    Drafter *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->c = *config;
    pthread_mutex_init(&d->turnstile, NULL);
    pthread_rwlock_init(&d->lock, NULL);
    return d;
}

void das_weights(Drafter *d, Weights *out) { HOLD_SHARED(d); *out = d->w; }

int das_store_new(Drafter *d) { HOLD_EXCLUSIVE(d); return store_new(&d->x); }

/* Candidates that a drafted position can have. */
static int32_t candidate_stride(const Drafter *d) { return d->c.max_candidates + d->c.cross_problem_candidates; }

/* Starts a sequence. drafts: whether it will be drafted for. */
int64_t das_seq_new(Drafter *d, int32_t store, int drafts) {
    HOLD_EXCLUSIVE(d);
    int32_t i = seq_new(&d->x, store, store), stride = candidate_stride(d);
    if (i < 0) return i;
    if (!drafts) return handle_of(&d->x, i);
    Trace *t = malloc(sizeof(Trace) + sizeof(Candidate) * (TRACE + 1) * (size_t)stride);
    if (!t) { seq_free(&d->x, i); return NO_MEMORY; }
    t->n = t->claimed = 0;
    t->stride = stride;
    d->x.seqs[i].trace = t;
    return handle_of(&d->x, i);
}

/* Learns from what the last draft predicted and what was emitted, then forgets the draft. */
static void learn_from(Drafter *d, Trace *t, const int32_t *toks, int64_t n) {
    for (int32_t i = 0; i < t->n && i < n; i++) {
        int accepted = t->drafted[i].tok == toks[i];
        if (i < TRACE) learn(&d->w, t->cand + (size_t)i * (size_t)t->stride, &t->mixed[i], toks[i]);
        learn_late(&d->w, i, t->drafted[i].prob, accepted);
        if (!accepted) break;
    }
    t->n = 0;
}

static int extend(Drafter *d, int32_t seq, const int32_t *toks, int64_t n, int indexed) {
    Trace *t = d->x.seqs[seq].trace;
    if (t) learn_from(d, t, toks, n);
    return append(&d->x, seq, toks, n, indexed ? 0 : N_ORDERS);
}

/* Appends n tokens to a sequence. Here and below, all tokens are checked before any is stored. */
int das_extend(Drafter *d, int64_t handle, const int32_t *toks, int64_t n, int indexed) {
    HOLD_EXCLUSIVE(d);
    for (int64_t i = 0; i < n; i++) if (toks[i] < 0) return BAD_TOKEN;
    return extend(d, (int32_t)handle, toks, n, indexed);
}

/* Appends toks[offsets[i] : offsets[i + 1]] to handles[i]. */
int das_append(Drafter *d, int32_t n, const int64_t *handles, const int64_t *offsets, const int32_t *toks) {
    HOLD_EXCLUSIVE(d);
    for (int64_t i = 0; i < offsets[n]; i++)
        if (toks[i] < 0) return BAD_TOKEN;
    for (int32_t i = 0; i < n; i++) {
        int rc = extend(d, (int32_t)handles[i], toks + offsets[i], offsets[i + 1] - offsets[i], 1);
        if (rc) return rc;
    }
    return 0;
}

/* Copies a sequence's tokens to `out`. */
void das_read(Drafter *d, int64_t handle, int32_t *out) {
    HOLD_SHARED(d);
    const Seq *q = &d->x.seqs[(int32_t)handle];
    const Store *s = &d->x.stores[q->store];
    uint32_t i = 0;
    for (uint32_t b = q->first; i < q->len; b = s->blocks[b].next)
        for (uint32_t j = 0; j < BLOCK && i < q->len; j++, i++) out[i] = s->toks[b * BLOCK + j];
}

/* Copies a sequence, without its first `context` tokens, into the store that other problems see. Returns the copy. */
int64_t das_share(Drafter *d, int64_t handle, uint32_t context) {
    HOLD_EXCLUSIVE(d);
    int32_t seq = (int32_t)handle;
    const Store *s = &d->x.stores[d->x.seqs[seq].store];
    int32_t copy = seq_new(&d->x, d->shared_store, d->x.seqs[seq].store);
    if (copy < 0) return copy;
    const Seq *q = &d->x.seqs[seq];
    uint32_t i = 0;
    for (uint32_t b = q->first; i < q->len; b = s->blocks[b].next) {
        int32_t tokens[BLOCK];
        int64_t n = 0;
        for (uint32_t j = 0; j < BLOCK && i < q->len; j++, i++)
            if (i >= context) tokens[n++] = s->toks[b * BLOCK + j];
        int rc = append(&d->x, copy, tokens, n, 1);
        if (rc) return rc;
        q = &d->x.seqs[seq];
    }
    return handle_of(&d->x, copy);
}

/* Ends a sequence. keep: it becomes history of the given tick; otherwise it is forgotten. */
int das_end(Drafter *d, int64_t handle, int keep, int64_t tick) {
    HOLD_EXCLUSIVE(d);
    return seq_end(&d->x, (int32_t)handle, keep, tick);
}

/* Forgets a store. All its sequences must have been forgotten before. */
int das_store_end(Drafter *d, int32_t store) {
    HOLD_EXCLUSIVE(d);
    Store *s = &d->x.stores[store];
    int rc = s->dead ? sweep(&d->x, s) : 0;
    if (!rc) store_free(&d->x, store);
    return rc;
}

/* Sets the current history tick and sweeps what was evicted. */
int das_set_tick(Drafter *d, int64_t tick) { HOLD_EXCLUSIVE(d); d->tick = tick; return sweep_all(&d->x); }

int64_t das_bytes(Drafter *d) {
    HOLD_SHARED(d);
    uint64_t total = sizeof *d + index_bytes(&d->x);
    uint64_t trace = sizeof(Trace) + sizeof(Candidate) * (TRACE + 1) * (uint64_t)candidate_stride(d);
    for (int32_t i = 0; i < d->x.n_seqs; i++)
        if (d->x.seqs[i].state != FREE && d->x.seqs[i].trace) total += trace;
    return (int64_t)total;
}

/* ---- drafting ---- */

/* Keeps the candidates that continue with tok and moves them one token on. Writes them to `out`, which may be `cand`,
 * and returns how many there are. */
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
    int64_t len, limit;              /* tokens in ctx; tokens that may be drafted */
    double reach, floor;             /* probability that the whole draft is accepted; it ends below the floor */
    int n_cand, needs_lookup, done;
    Lookup own, shared;              /* in the problem's store; in the store of all problems' newest texts */
} Work;

static void start_work(const Drafter *d, Work *w, int32_t seq, int64_t limit, double floor, int32_t *ctx) {
    const Seq *q = &d->x.seqs[seq];
    w->seq = seq; w->ctx = ctx; w->t = q->trace; w->cand = w->t->cand; w->t->n = 0;
    w->own.s = &d->x.stores[q->store]; w->own.cross_problem = 0; w->own.skip = d->c.exclude_own ? seq : -1;
    w->shared.s = &d->x.stores[d->shared_store]; w->shared.cross_problem = 1; w->shared.skip = -1;
    w->len = tail(w->own.s, q, d->c.max_match, w->ctx);
    w->limit = limit; w->reach = 1.0;
    w->floor = floor > d->c.min_prob ? floor : d->c.min_prob;
    w->n_cand = 0; w->done = 0;
}

/* Runs the lookups of token j, stage by stage, for all requests that have no candidates left. */
static void look_up(const Drafter *d, Work *work, int32_t n, int64_t j) {
    int shared = d->c.cross_problem_candidates;
    for (int32_t r = 0; r < n; r++) {
        Work *w = &work[r];
        w->done |= j >= w->limit;
        w->needs_lookup = !w->done && !w->n_cand;
        if (!w->needs_lookup) continue;
        w->own.end = w->shared.end = w->ctx + w->len;
        w->own.limit = w->shared.limit = (int32_t)(w->len < d->c.max_match ? w->len : d->c.max_match);
        w->own.max_visits = j ? d->c.fallback_visits : MAX_VISITS;
        w->shared.max_visits = d->c.fallback_visits;
        lookup_start(&w->own);
        if (shared) lookup_start(&w->shared);
    }
    for (int32_t r = 0; r < n; r++) {
        if (!work[r].needs_lookup) continue;
        lookup_slots(&work[r].own);
        if (shared) lookup_slots(&work[r].shared);
    }
    for (int32_t r = 0; r < n; r++) {
        if (!work[r].needs_lookup) continue;
        lookup_heads(&work[r].own);
        if (shared) lookup_heads(&work[r].shared);
    }
    for (int i = 0, goes_on = 1; goes_on && i < MAX_VISITS; i++) {
        goes_on = 0;
        for (int32_t r = 0; r < n; r++) {
            if (!work[r].needs_lookup) continue;
            goes_on |= lookup_step(d, &work[r].own, i);
            if (shared) goes_on |= lookup_step(d, &work[r].shared, i);
        }
    }
}

/* Collects the candidates that a request's lookups found for token j. */
static void collect(const Drafter *d, Work *w, int64_t j) {
    int32_t room = j && d->c.fallback_visits < d->c.max_candidates ? d->c.fallback_visits : d->c.max_candidates;
    w->n_cand = lookup_collect(d, &w->own, w->seq, w->cand, room);
    if (!d->c.cross_problem_candidates) return;
    w->n_cand += lookup_collect(d, &w->shared, w->seq, w->cand + w->n_cand, d->c.cross_problem_candidates);
}

/* Drafts token j of a request from its candidates, or ends its draft. */
static void draft_token(const Drafter *d, Work *w, int64_t j, int32_t *token, double *prob, Singles *singles) {
    Mixed spare, *m = j < TRACE ? &w->t->mixed[j] : &spare;
    if (!w->n_cand) { w->done = 1; return; }
    mix(&d->w, w->cand, w->n_cand, m, singles);
    int b = likeliest(m);
    int32_t tok = m->best[b];
    double p = corrected(&d->w, j, m->p[b]);
    if (j < POSITIONS) {
        w->t->drafted[j] = (Drafted){p, tok};
        w->t->n = (int32_t)j + 1;
    }
    w->reach *= p;
    if (w->reach < w->floor) { w->done = 1; return; }
    *token = w->ctx[w->len++] = tok;
    *prob = p;
    Candidate *next = j < TRACE ? w->cand + w->t->stride : w->cand;   /* traced candidates must not be overwritten */
    w->n_cand = follow(d, w->own.s, w->shared.s, w->cand, w->n_cand, tok, next);
    w->cand = next;
}

/* Drafts for at most BATCH sequences side by side, token by token. ctx: [n][max_match + stride + 1]. */
static void draft_batch(const Drafter *d, int32_t n, const int64_t *handles, const int64_t *limits, const double *floors,
                        int64_t stride, int32_t *tokens, double *probs, int64_t *counts, int32_t *ctx,
                        Singles *singles) {
    Work work[BATCH];
    int64_t ctx_stride = d->c.max_match + stride + 1;
    for (int32_t r = 0; r < n; r++) {
        start_work(d, &work[r], (int32_t)handles[r], limits[r], floors ? floors[r] : 0.0, ctx + r * ctx_stride);
        counts[r] = 0;
    }
    for (int64_t j = 0, live = n; live; j++) {
        look_up(d, work, n, j);
        live = 0;
        for (int32_t r = 0; r < n; r++) {
            Work *w = &work[r];
            if (w->done) continue;
            if (w->needs_lookup) collect(d, w, j);
            draft_token(d, w, j, &tokens[r * stride + j], &probs[r * stride + j], singles);
            counts[r] += !w->done;
            live += !w->done;
        }
    }
}

static void release(Drafter *d, int32_t n, const int64_t *handles) {
    for (int32_t r = 0; r < n; r++)
        __atomic_store_n(&d->x.seqs[(int32_t)handles[r]].trace->claimed, 0, __ATOMIC_RELEASE);
}

/* Claims the traces of n sequences for this call. Returns 0, NOT_LIVE or BUSY. */
static int claim(Drafter *d, int32_t n, const int64_t *handles) {
    for (int32_t r = 0; r < n; r++) {
        int32_t i = place_of(&d->x, handles[r]);
        Trace *t = i >= 0 && d->x.seqs[i].state == LIVE ? d->x.seqs[i].trace : NULL;
        int rc = !t ? NOT_LIVE : __atomic_exchange_n(&t->claimed, 1, __ATOMIC_ACQUIRE) ? BUSY : 0;
        if (rc) { release(d, r, handles); return rc; }
    }
    return 0;
}

/* das_propose while the lock is held. */
static int propose(Drafter *d, int32_t n, const int64_t *handles, const int64_t *limits, const double *floors,
                   int64_t stride, int32_t *tokens, double *probs, int64_t *counts) {
    int rc = claim(d, n, handles);
    if (rc) return rc;
    int32_t *ctx = malloc(sizeof *ctx * BATCH * (size_t)(d->c.max_match + stride + 1));
    Singles singles;
    memset(singles.known, 0, sizeof singles.known);
    for (int32_t r = 0; ctx && r < n; r += BATCH)
        draft_batch(d, n - r < BATCH ? n - r : BATCH, handles + r, limits + r, floors ? floors + r : NULL, stride,
                    tokens + r * stride, probs + r * stride, counts + r, ctx, &singles);
    free(ctx);
    release(d, n, handles);
    return ctx ? 0 : NO_MEMORY;
}

/* Drafts for n different sequences. No limit exceeds stride. floors [n] or NULL: a draft ends before its probability
 * falls below its floor or min_prob, whichever is higher.
 * Writes tokens and probs [n][stride], or row behind row without gaps if packed, and counts [n]. */
int das_propose(Drafter *d, int32_t n, const int64_t *handles, const int64_t *limits, const double *floors,
                int64_t stride, int packed, int32_t *tokens, double *probs, int64_t *counts) {
    int rc;
    for (int32_t r = 0; floors && r < n; r++) if (isnan(floors[r])) return BAD_FLOOR;
    {
        HOLD_SHARED(d);
        rc = propose(d, n, handles, limits, floors, stride, tokens, probs, counts);
    }
    if (rc == BUSY) {                                  /* then wait until nobody else drafts */
        HOLD_EXCLUSIVE(d);
        rc = propose(d, n, handles, limits, floors, stride, tokens, probs, counts);
    }
    for (int64_t r = 0, end = 0; !rc && packed && stride && r < n; end += counts[r++]) {
        memmove(tokens + end, tokens + r * stride, sizeof *tokens * (size_t)counts[r]);
        memmove(probs + end, probs + r * stride, sizeof *probs * (size_t)counts[r]);
    }
    return rc;
}
