/* The history drafter's core: occurrences of the context's end in history, siblings, own text and other problems are
 * gathered (index.h), turned into a token and its probability (mix.h), and followed token by token.
 *
 * das/drafter/reference.py answers the same questions by brute force: change both together. One call at a time per
 * drafter: das/drafter/history.py holds a lock. Functions return >= 0, or NO_MEMORY / BAD_TOKEN / TOO_LONG. */
#include "index.h"
#include "mix.h"

#define MAX_VISITS 32

/* Mirrored field by field in native.py. */
typedef struct {
    int32_t max_match;               /* matches are compared up to this many tokens, at most 32 */
    int32_t max_candidates;          /* occurrences in the problem looked at per drafted token */
    int32_t enough;                  /* with fewer occurrences that still agree than this * reach, look up again */
    int32_t exclude_own;             /* 1: a request's own text is no candidate */
    int32_t others;                  /* occurrences in other problems looked at per lookup; 0: none */
    int32_t visits[N_ORDERS];        /* occurrences looked at per order, at most MAX_VISITS */
    double min_prob;                 /* a draft ends before its cumulative probability falls below this */
} Config;

typedef struct Trace {
    int32_t n;
    int32_t drafted[TRACE];
    Mixed mixed[TRACE];
    int32_t stride;
    Candidate cand[];                /* [TRACE][stride] */
} Trace;

typedef struct {
    Config c;
    int64_t clock;
    Index x;
    Weights w;
    int32_t shared;                  /* the store of all problems' newest texts */
    int32_t *ctx; int64_t cap_ctx;   /* scratch: recent tokens */
} Drafter;

void das_free(Drafter *d) {
    if (!d) return;
    for (int32_t i = 0; i < d->x.n_seqs; i++) if (d->x.seqs[i].state != FREE) free(d->x.seqs[i].trace);
    for (int32_t i = 0; i < d->x.n_stores; i++) store_clear(&d->x.stores[i]);
    free(d->x.stores); free(d->x.seqs); free(d->ctx); free(d);
}

Drafter *das_new(const Config *config, const Weights *weights) {
    fill_logs();
    Drafter *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->c = *config;
    d->w = *weights;
    d->x.free_seq = -1;
    if ((d->shared = store_new(&d->x)) < 0) { das_free(d); return NULL; }
    return d;
}

void das_weights(const Drafter *d, Weights *out) { *out = d->w; }

int das_store_new(Drafter *d) { return store_new(&d->x); }

int das_seq_new(Drafter *d, int32_t store) { return seq_new(&d->x, store, store); }

/* Learns from what the last draft foresaw and what came, then forgets the draft. */
static void learn_from(Drafter *d, Trace *t, const int32_t *toks, int64_t n) {
    for (int32_t i = 0; i < t->n && i < n; i++) {
        learn(&d->w, t->cand + (size_t)i * (size_t)t->stride, &t->mixed[i], toks[i]);
        if (t->drafted[i] != toks[i]) break;
    }
    t->n = 0;
}

/* Appends toks[offsets[i] : offsets[i + 1]] to seqs[i]. All tokens are checked before any is stored. */
int das_append(Drafter *d, int32_t n, const int32_t *seqs, const int64_t *offsets, const int32_t *toks, int indexed) {
    for (int64_t i = 0; i < offsets[n]; i++)
        if (toks[i] < 0) return BAD_TOKEN;
    for (int32_t i = 0; i < n; i++) {
        const Seq *q = &d->x.seqs[seqs[i]];
        const int32_t *new = toks + offsets[i];
        int64_t many = offsets[i + 1] - offsets[i];
        if (q->trace) learn_from(d, q->trace, new, many);
        int rc = append(&d->x, seqs[i], new, many, indexed ? 0 : N_ORDERS);
        if (rc) return rc;
    }
    return 0;
}

/* Copies a sequence's tokens. */
void das_read(const Drafter *d, int32_t seq, int32_t *out) {
    const Seq *q = &d->x.seqs[seq];
    const Store *s = &d->x.stores[q->store];
    uint32_t i = 0;
    for (uint32_t b = q->first; i < q->len; b = s->blocks[b].next)
        for (uint32_t j = 0; j < BLOCK && i < q->len; j++, i++) out[i] = s->cells[b * BLOCK + j].tok;
}

/* Copies a sequence, without its first `context` tokens, to where other problems see it; returns the copy. */
int das_share(Drafter *d, int32_t seq, uint32_t context) {
    const Store *s = &d->x.stores[d->x.seqs[seq].store];
    int32_t copy = seq_new(&d->x, d->shared, d->x.seqs[seq].store);
    if (copy < 0) return copy;
    const Seq *q = &d->x.seqs[seq];
    uint32_t i = 0;
    for (uint32_t b = q->first; i < q->len; b = s->blocks[b].next) {
        int32_t tokens[BLOCK];
        int64_t n = 0;
        for (uint32_t j = 0; j < BLOCK && i < q->len; j++, i++)
            if (i >= context) tokens[n++] = s->cells[b * BLOCK + j].tok;
        int rc = append(&d->x, copy, tokens, n, 1);
        if (rc) return rc;
        q = &d->x.seqs[seq];
    }
    return copy;
}

int das_end(Drafter *d, int32_t seq, int keep, int64_t clock) { return seq_end(&d->x, seq, keep, clock); }

/* Forgets a store whose sequences have all been forgotten. */
int das_store_end(Drafter *d, int32_t store) {
    Store *s = &d->x.stores[store];
    int rc = s->dead ? sweep(&d->x, s) : 0;
    if (!rc) { store_clear(s); s->used = 0; }
    return rc;
}

void das_clock(Drafter *d, int64_t clock) { d->clock = clock; }

int64_t das_bytes(const Drafter *d) {
    uint64_t total = sizeof *d + index_bytes(&d->x), trace = sizeof(Trace);
    trace += sizeof(Candidate) * TRACE * (uint64_t)(d->c.max_candidates + d->c.others);
    for (int32_t i = 0; i < d->x.n_seqs; i++)
        if (d->x.seqs[i].state != FREE && d->x.seqs[i].trace) total += trace;
    return (int64_t)total;
}

/* ---- drafting ---- */

/* How many tokens before pos equal the end of the context, at most limit, when the last `known` are known to. */
static int32_t match_length(const Store *s, const int32_t *end, uint32_t pos, int32_t known, int32_t limit) {
    int32_t m = 0;
    if ((pos & (BLOCK - 1)) >= (uint32_t)known) { m = known; pos -= (uint32_t)known; }
    while (m < limit) {
        if (!(pos & (BLOCK - 1))) {
            uint32_t before = s->blocks[pos >> SHIFT].prev;
            if (before == NONE) break;
            pos = before * BLOCK + BLOCK;
        }
        pos--;
        if (m >= known && s->cells[pos].tok != end[-1 - m]) break;
        m++;
    }
    return m;
}

typedef struct { uint32_t pos[MAX_VISITS], next; int32_t n; } Walk;

/* The first positions of each order's chain. The walks go on side by side, because each jumps through memory. */
static void walk(const Drafter *d, const Store *s, const int32_t *end, int32_t limit, int from, Walk *walks) {
    uint32_t h[N_ORDERS] = {0};
    int most = 0;
    hashes(end, limit, h);
    for (int o = from; o < N_ORDERS; o++) {
        walks[o].n = 0;
        walks[o].next = NONE;
        if (ORDERS[o] <= limit && s->tables[o].size)
            __builtin_prefetch(&s->tables[o].slots[slot_of(h[o], s->tables[o].size)]);
    }
    for (int o = from; o < N_ORDERS && ORDERS[o] <= limit && s->tables[o].size; o++) {
        walks[o].next = *find(s, o, h[o], end);
        if (walks[o].next == NONE) break;              /* then no longer n-gram occurs either */
        __builtin_prefetch(&s->cells[walks[o].next]);
        most = d->c.visits[o] > most ? d->c.visits[o] : most;
    }
    for (int i = 0; i < most; i++)
        for (int o = from; o < N_ORDERS; o++) {
            Walk *w = &walks[o];
            if (w->next == NONE || i >= d->c.visits[o]) continue;
            w->pos[i] = w->next;
            w->n = i + 1;
            w->next = s->cells[w->next].next[o];
            if (w->next != NONE) {
                __builtin_prefetch(&s->cells[w->next]);
                __builtin_prefetch(&s->blocks[w->next >> SHIFT]);
            }
        }
}

/* Occurrences of the end of the context in a store, longest order first, newest first within an order, each once.
 * other: the store is the shared one, where the request's own problem does not count and order 1 is not indexed. */
static int gather(const Drafter *d, const Store *s, int32_t seq, const int32_t *end, int64_t len, int other,
                  Candidate *cand, int room) {
    const Config *c = &d->c;
    int32_t limit = (int32_t)(len < c->max_match ? len : c->max_match), above = c->max_match + 1;
    int32_t problem = d->x.seqs[seq].store;
    Walk walks[N_ORDERS];
    int n = 0;
    if (!room) return 0;
    walk(d, s, end, limit, other, walks);
    for (int o = N_ORDERS - 1; o >= other && n < room; o--) {
        Walk *w = &walks[o];
        int32_t seen = 0;
        for (int i = 0; seen < c->visits[o] && n < room; i++) {
            uint32_t pos;
            if (i < w->n) pos = w->pos[i];
            else {                                     /* the walk met texts that do not count, and was too short */
                if (w->next == NONE) break;
                pos = w->next;
                w->next = s->cells[pos].next[o];
            }
            int32_t id = s->blocks[pos >> SHIFT].seq;
            const Seq *q = &d->x.seqs[id];
            if (q->state == DEAD || (!other && c->exclude_own && id == seq)) continue;
            seen++;
            if (other && q->origin == problem) continue;
            int32_t m = match_length(s, end, pos, ORDERS[o], limit);
            if (m >= above) continue;                  /* found through a longer order already */
            int64_t age = q->state == LIVE ? 0 : d->clock - q->clock;
            if (age > SOURCES - 3) age = SOURCES - 3;
            cand[n++] = (Candidate){.pos = pos, .tok = s->cells[pos].tok, .match = m, .other = (uint8_t)other,
                                    .source = (uint8_t)(other ? OTHER_PROBLEM : id == seq ? 0 : 1 + age)};
        }
        above = ORDERS[o];
    }
    return n;
}

/* Candidates that continue with tok, moved one token on, to `out` (which may be `cand`). */
static int follow(const Drafter *d, const Store *own, const Store *shared, const Candidate *cand, int n, int32_t tok,
                  Candidate *out) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        Candidate k = cand[i];
        if (k.tok != tok) continue;
        const Store *s = k.other ? shared : own;
        if (k.pos == end_pos(&d->x.seqs[s->blocks[k.pos >> SHIFT].seq])) continue;
        k.pos = step_on(s, k.pos);
        k.match += k.match < d->c.max_match;
        k.tok = s->cells[k.pos].tok;
        out[kept++] = k;
    }
    return kept;
}

static int reserve(Drafter *d, Seq *q, int64_t tokens) {
    int32_t stride = d->c.max_candidates + d->c.others;
    if (!q->trace) {
        q->trace = malloc(sizeof(Trace) + sizeof(Candidate) * TRACE * (size_t)stride);
        if (!q->trace) return NO_MEMORY;
        q->trace->stride = stride;
    }
    q->trace->n = 0;
    if (tokens <= d->cap_ctx) return 0;
    int32_t *ctx = realloc(d->ctx, sizeof(int32_t) * (size_t)tokens);
    if (!ctx) return NO_MEMORY;
    d->ctx = ctx; d->cap_ctx = tokens;
    return 0;
}

/* Drafts for n sequences. tokens, probs: [n][stride]; counts: [n]. */
int das_propose(Drafter *d, int32_t n, const int32_t *seqs, const int64_t *limits, int64_t stride, int32_t *tokens,
                double *probs, int64_t *counts) {
    Candidate late[MAX_CAND];
    Mixed spare;
    for (int32_t r = 0; r < n; r++) {
        Seq *q = &d->x.seqs[seqs[r]];
        int rc = reserve(d, q, d->c.max_match + limits[r] + 1);
        if (rc) return rc;
        const Store *s = &d->x.stores[q->store], *shared = &d->x.stores[d->shared];
        Trace *t = q->trace;
        Candidate *cand = t->cand;
        int64_t len = tail(s, q, d->c.max_match, d->ctx), j = 0;
        double reach = 1.0;
        int k = 0;
        for (; j < limits[r]; j++) {
            if (k < d->c.enough * reach) {
                k = gather(d, s, seqs[r], d->ctx + len, len, 0, cand, d->c.max_candidates);
                k += gather(d, shared, seqs[r], d->ctx + len, len, 1, cand + k, d->c.others);
            }
            if (!k) break;
            Mixed *m = j < TRACE ? &t->mixed[j] : &spare;
            mix(&d->w, cand, k, m);
            int b = likeliest(m);
            int32_t tok = m->best[b];
            if (j < TRACE) {
                t->drafted[j] = tok;
                t->n = (int32_t)j + 1;
            }
            reach *= m->p[b];
            if (reach < d->c.min_prob) break;
            tokens[r * stride + j] = tok;
            probs[r * stride + j] = m->p[b];
            d->ctx[len++] = tok;
            Candidate *on = j + 1 < TRACE ? cand + t->stride : late;
            k = follow(d, s, shared, cand, k, tok, on);
            cand = on;
        }
        counts[r] = j;
    }
    return 0;
}
