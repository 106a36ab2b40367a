/* The history drafter's core. It looks up earlier occurrences of the end of a request's context in the history of past
 * responses, siblings, the request's own text and other problems (lookup.h). It turns them into a token and its
 * probability (recall.h), and follows them token by token (draft.h), in Python's calls or beside Python (thread.h).
 *
 * tests/drafter/reference.py computes the same answers by brute force: change both together. One thread at a time may
 * use a core. Functions that return int return a value >= 0, or one of the negative codes of index.h. Handles come from
 * das_seq_new and das_share. Only das_propose may be called with the handle of a sequence that was freed. */
#include "draft.h"

/* ---- texts ---- */

static void clear(Drafter *d) {
    for (int32_t i = 0; i < d->x.n_seqs; i++) if (d->x.seqs[i].state != FREE) trace_free(d->x.seqs[i].trace);
    for (int32_t i = 0; i < d->x.n_stores; i++) store_clear(&d->x.stores[i]);
    free(d->x.stores); free(d->x.seqs);
    d->x = (Index){.free_seq = -1, .free_store = -1, .generation = d->x.generation, .remembers = d->c.remembers,
                   .key = d->c.key};
}

/* Drops all texts and continues with these weights [2]. */
int das_restart(Drafter *d, const Weights *weights) {
    clear(d);
    memcpy(d->w, weights, sizeof d->w);
    d->tick = 0;
    return d->shared_store = store_new(&d->x);
}

Drafter *das_new(const Config *config) {
    static int filled = 0;
    if (!filled) fill_probs();
    filled = 1;
    Drafter *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->c = *config;
    return d;
}

void das_weights(Drafter *d, Weights *out) { memcpy(out, d->w, sizeof d->w); }

int das_store_new(Drafter *d) { return store_new(&d->x); }

/* Starts a sequence. drafts: whether drafts will be made for it. noisy: whether `seed` gives the noise of its tokens.
 * context: the number of its tokens before the first one with noise. */
int64_t das_seq_new(Drafter *d, int32_t store, int drafts, int noisy, int64_t seed, int32_t context) {
    int32_t i = seq_new(&d->x, store, store), stride = candidate_stride(d);
    if (i < 0) return i;
    if (!drafts) return handle_of(&d->x, i);
    Trace *t = malloc(sizeof(Trace) + sizeof(Candidate) * (TRACE + 1) * (size_t)stride);
    if (!t) { seq_free(&d->x, i); return NO_MEMORY; }
    t->pairs = NULL;
    t->noisy = noisy; t->seed = seed; t->context = context;
    if (d->c.remembers && !(t->pairs = malloc(sizeof *t->pairs * (TRACE + 1) * (size_t)stride))) {
        trace_free(t);
        seq_free(&d->x, i);
        return NO_MEMORY;
    }
    t->n = t->claimed = 0;
    t->stride = stride;
    d->x.seqs[i].trace = t;
    return handle_of(&d->x, i);
}

static int extend(Drafter *d, int32_t seq, const int32_t *toks, const uint32_t *pairs, int64_t n, int indexed,
                  int learns) {
    Trace *t = d->x.seqs[seq].trace;
    if (t && !learns) t->n = 0;
    else if (t) learn_from_draft(d, t, toks, n);
    return append(&d->x, seq, toks, pairs, n, indexed ? 0 : N_ORDERS);
}

/* Appends n tokens to a sequence. Here and below, all tokens are checked before any is stored. pairs: [n][PAIRS], the
 * tokens' distributions, or NULL. */
int das_extend(Drafter *d, int64_t handle, const int32_t *toks, const uint32_t *pairs, int64_t n, int indexed) {
    for (int64_t i = 0; i < n; i++) if (toks[i] < 0) return BAD_TOKEN;
    return extend(d, (int32_t)handle, toks, pairs, n, indexed, 0);
}

/* Appends toks[offsets[i] : offsets[i + 1]] to handles[i]. learns: whether the weights learn from the last drafts. */
int das_append(Drafter *d, int32_t n, const int64_t *handles, const int64_t *offsets, const int32_t *toks,
               const uint32_t *pairs, int learns) {
    for (int64_t i = 0; i < offsets[n]; i++)
        if (toks[i] < 0) return BAD_TOKEN;
    for (int32_t i = 0; i < n; i++) {
        const uint32_t *own = pairs ? pairs + offsets[i] * PAIRS : NULL;
        int rc = extend(d, (int32_t)handles[i], toks + offsets[i], own, offsets[i + 1] - offsets[i], 1, learns);
        if (rc) return rc;
    }
    return 0;
}

/* Copies a sequence's tokens to `out`, and their distributions to pairs [tokens][PAIRS] unless it is NULL. */
void das_read(Drafter *d, int64_t handle, int32_t *out, uint32_t *pairs) {
    const Seq *q = &d->x.seqs[(int32_t)handle];
    const Store *s = &d->x.stores[q->store];
    uint32_t i = 0;
    for (uint32_t b = q->first; i < q->len; b = s->blocks[b].next)
        for (uint32_t j = 0; j < BLOCK && i < q->len; j++, i++) {
            out[i] = s->toks[b * BLOCK + j];
            if (pairs) recall_at(s, b * BLOCK + j, pairs + (size_t)i * PAIRS);
        }
}

/* Copies a sequence, without its first `context` tokens, into the store that other problems see. Returns the copy. */
int64_t das_share(Drafter *d, int64_t handle, uint32_t context) {
    const Seq *q = &d->x.seqs[(int32_t)handle];
    uint32_t n = q->len;
    int32_t copy = seq_new(&d->x, d->shared_store, q->store), rc = NO_MEMORY;
    if (copy < 0) return copy;
    int32_t *tokens = malloc(sizeof *tokens * n + 1);
    uint32_t *pairs = d->x.remembers ? malloc(sizeof *pairs * PAIRS * n + 1) : NULL;
    if (tokens && (pairs || !d->x.remembers)) {
        das_read(d, handle, tokens, pairs);
        rc = append(&d->x, copy, tokens + context, pairs ? pairs + context * PAIRS : NULL, n - context, 1);
    }
    free(tokens); free(pairs);
    return rc ? rc : handle_of(&d->x, copy);
}

/* Ends a sequence. keep: it becomes history of the given tick; otherwise it is forgotten. */
int das_end(Drafter *d, int64_t handle, int keep, int64_t tick) {
    return seq_end(&d->x, (int32_t)handle, keep, tick);
}

/* Forgets a store. All its sequences must have been forgotten before. */
int das_store_end(Drafter *d, int32_t store) {
    Store *s = &d->x.stores[store];
    int rc = s->dead ? sweep(&d->x, s) : 0;
    if (!rc) store_free(&d->x, store);
    return rc;
}

/* Sets the current history tick, and sweeps stores from which sequences were evicted. */
int das_set_tick(Drafter *d, int64_t tick) { d->tick = tick; return sweep_all(&d->x); }

/* ---- drafting ---- */

static void release(Drafter *d, int32_t n, const int64_t *handles) {
    for (int32_t r = 0; r < n; r++) d->x.seqs[(int32_t)handles[r]].trace->claimed = 0;
}

/* Claims the traces of n sequences for this call. Returns 0, NOT_LIVE or, if one is named twice, BUSY. */
static int claim(Drafter *d, int32_t n, const int64_t *handles) {
    for (int32_t r = 0; r < n; r++) {
        int32_t i = place_of(&d->x, handles[r]);
        Trace *t = i >= 0 && d->x.seqs[i].state == LIVE ? d->x.seqs[i].trace : NULL;
        int rc = !t ? NOT_LIVE : t->claimed ? BUSY : 0;
        if (rc) { release(d, r, handles); return rc; }
        t->claimed = 1;
    }
    return 0;
}

/* Output of drafts: arrays [n][stride], and counts [n]. */
typedef struct { int64_t stride; int32_t *tokens; double *probs; int64_t *counts; } Rows;

/* Drafts for at most BATCH sequences side by side, token by token, into the rows from `first` on.
 * ctx: [n][max_match + stride + 1]. */
static void draft_batch(const Drafter *d, int32_t n, const int64_t *handles, const int64_t *limits, const double *floors,
                        const Rows *rows, int32_t first, int32_t *ctx) {
    Work work[BATCH];
    int64_t ctx_stride = d->c.max_match + rows->stride + 1;
    for (int32_t r = 0; r < n; r++) {
        double floor = floors ? floors[first + r] : 0.0;
        start_work(d, &work[r], (int32_t)handles[first + r], limits[first + r], floor, ctx + r * ctx_stride);
        rows->counts[first + r] = 0;
    }
    for (int64_t j = 0, live = n; live; j++) {
        look_up(d, work, n, j);
        live = 0;
        for (int32_t r = 0; r < n; r++) {
            Work *w = &work[r];
            if (w->done) continue;
            int64_t at = (first + r) * rows->stride + j;
            if (w->needs_lookup) collect(d, w, j);
            draft_token(d, w, j, &rows->tokens[at], &rows->probs[at]);
            rows->counts[first + r] += !w->done;
            live += !w->done;
        }
    }
}

/* Drafts for n different sequences. No limit exceeds stride.
 * floors [n] or NULL: a draft ends before its probability falls below its floor or min_prob, whichever is higher.
 * Writes tokens and probs [n][stride], and counts [n]. */
int das_propose(Drafter *d, int32_t n, const int64_t *handles, const int64_t *limits, const double *floors,
                int64_t stride, int32_t *tokens, double *probs, int64_t *counts) {
    const Rows rows = {stride, tokens, probs, counts};
    for (int32_t r = 0; floors && r < n; r++) if (isnan(floors[r])) return BAD_FLOOR;
    int rc = claim(d, n, handles);
    if (rc) return rc;
    int32_t *ctx = malloc(sizeof *ctx * BATCH * (size_t)(d->c.max_match + stride + 1));
    if (!ctx) rc = NO_MEMORY;
    for (int32_t r = 0; !rc && r < n; r += BATCH)
        draft_batch(d, n - r < BATCH ? n - r : BATCH, handles, limits, floors, &rows, r, ctx);
    free(ctx);
    release(d, n, handles);
    return rc;
}

#include "thread.h"
