/* The drafter's state, and lookups in the index (index.h): they find earlier occurrences (candidates, mix.h) of the end
 * of a context. */
#include "index.h"
#include "recall.h"

#define MAX_VISITS 32

/* Mirrored field by field in native.py. A fallback lookup searches the texts of other problems, or continues a draft
 * when no candidate agrees with it any more. */
typedef struct {
    int32_t max_match;               /* matches are compared up to this many tokens, at most 32 */
    int32_t max_candidates;          /* candidates that a lookup in the problem may give, at the start of a draft */
    int32_t fallback_visits;         /* occurrences visited per order in a fallback lookup; after a drafted token, also
                                        the most candidates that a lookup in the problem may give */
    int32_t cross_problem_candidates;  /* candidates that a lookup in other problems may give; 0: no such lookups */
    int32_t visits[N_ORDERS];        /* occurrences visited per order, at most MAX_VISITS */
    int32_t places;                  /* max_candidates of drafts that use the noise, unless that is smaller */
    int32_t agreeing;                /* see go_on */
    int32_t remembers;               /* 1: distributions are remembered, and drafts use the sampling noise */
    Key key;                         /* of the index's hashes */
    double min_prob;                 /* a draft ends before its cumulative probability falls below this */
} Config;

typedef struct { double prob; int32_t tok; } Drafted;  /* side by side: learning reads few cache lines */

typedef struct Trace {
    int32_t n, stride;               /* positions of the last draft; the most candidates of a position */
    int32_t claimed;                 /* 1 while a call drafts, so that it sees a sequence that is named twice */
    int32_t noisy, context;          /* whether `seed` is known; number of tokens before the response */
    int64_t seed;
    uint32_t (*pairs)[PAIRS];        /* [TRACE + 1][stride]: the candidates' distributions; NULL unless remembered */
    Drafted drafted[POSITIONS];      /* drafted tokens with corrected probabilities */
    Mixed mixed[TRACE];
    Candidate cand[];                /* [TRACE + 1][stride]; the last row serves all later tokens */
} Trace;

typedef struct {
    Config c;
    int64_t tick;                    /* the current history tick */
    Index x;
    Weights w[2];                    /* where the noise is unknown; where it is known */
    int32_t shared_store;            /* copies of all problems' newest texts */
    struct Thread *thread;           /* drafts beside Python (thread.h); NULL before its first job */
} Drafter;

static void trace_free(Trace *t) {
    if (!t) return;
    free(t->pairs);
    free(t);
}

/* Returns the match length: the number of tokens before pos that equal the end of the context, at most `limit`. */
static int32_t match_length(const Store *s, const int32_t *end, uint32_t pos, int32_t limit) {
    int32_t m = 0;
    while (m < limit) {
        int32_t run = (int32_t)(pos & (BLOCK - 1));
        if (!run) {
            uint32_t before = s->blocks[pos >> SHIFT].prev;
            if (before == NONE) break;
            pos = before * BLOCK + BLOCK;
            run = BLOCK;
        }
        if (run > limit - m) run = limit - m;
        const int32_t *text = s->toks + pos, *context = end - m;
        int32_t i = 0;
        for (; i + 8 <= run; i += 8) {                 /* eight tokens at a time, without branches */
            uint32_t differ = 0;
            for (int k = 0; k < 8; k++) differ |= (uint32_t)(text[-i - 1 - k] != context[-i - 1 - k]) << k;
            if (differ) return m + i + __builtin_ctz(differ);
        }
        for (; i < run; i++)
            if (text[-i - 1] != context[-i - 1]) return m + i;
        m += run;
        pos -= (uint32_t)run;
    }
    return m;
}

/* match_length with a limit of MAX_ORDER, without branches, because the processor could not predict them. */
static int32_t short_match(const Store *s, const int32_t *end, uint32_t pos) {
    if ((pos & (BLOCK - 1)) < MAX_ORDER) return match_length(s, end, pos, MAX_ORDER);
    const int32_t *text = s->toks + pos;
    int32_t m = 0, same = 1;
    for (int i = 1; i <= MAX_ORDER; i++) m += same &= text[-i] == end[-i];
    return m;
}

/* The positions visited along one chain, and the position that comes next. */
typedef struct { uint32_t pos[MAX_VISITS], next; int32_t n; } Walk;

/* A lookup of a context's end in a store. Chains jump through memory, so a lookup runs in stages: each stage runs for
 * many requests in turn and prefetches what the next stage reads. The memory accesses of a whole batch overlap. */
typedef struct {
    const Store *s;
    const int32_t *end;              /* end of the context */
    int32_t limit;                   /* longest match in tokens */
    int cross_problem;               /* 1: a lookup in the shared store, where order 1 is not looked up */
    int32_t max_visits;              /* occurrences visited per order, even where Config.visits allows more */
    uint32_t hash[N_ORDERS];
    Walk walks[N_ORDERS];
} Lookup;

/* Stage 1: hashes the context and prefetches the slots. */
static void lookup_start(Lookup *l) {
    hashes(l->s, l->end, l->limit, l->hash);
    for (int o = 0; o < N_ORDERS; o++) {
        const Table *t = &l->s->tables[o];
        l->walks[o].n = 0;
        l->walks[o].next = NONE;
        if (o >= l->cross_problem && ORDERS[o] <= l->limit && t->size)
            __builtin_prefetch(&t->slots[slot_of(l->hash[o], t->size)]);
    }
}

static void prefetch_pos(const Store *s, uint32_t pos) {
    __builtin_prefetch(&s->toks[pos]);
    __builtin_prefetch(&s->links[pos]);
    __builtin_prefetch(&s->blocks[pos >> SHIFT]);
    if (s->heads) {
        __builtin_prefetch(&s->heads[pos]);
        __builtin_prefetch(&s->pairs[pos >> SHIFT]);
    }
}

/* Stage 2: prefetches the text at the slots, which `find` compares. */
static void lookup_slots(Lookup *l) {
    for (int o = l->cross_problem; o < N_ORDERS && ORDERS[o] <= l->limit && l->s->tables[o].size; o++) {
        const Table *t = &l->s->tables[o];
        uint32_t pos = t->slots[slot_of(l->hash[o], t->size)];
        if (pos != NONE) prefetch_pos(l->s, pos);
    }
}

/* Stage 3: finds the newest position of each order's n-gram. */
static void lookup_heads(Lookup *l) {
    for (int o = l->cross_problem; o < N_ORDERS && ORDERS[o] <= l->limit && l->s->tables[o].size; o++) {
        uint32_t head = l->walks[o].next = *find(l->s, o, l->hash[o], l->end);
        if (head == NONE) break;                       /* longer n-grams cannot occur either */
        prefetch_pos(l->s, head);
    }
}

static int32_t visits(const Drafter *d, const Lookup *l, int o) {
    return d->c.visits[o] < l->max_visits ? d->c.visits[o] : l->max_visits;
}

/* Stage 4, once for each i: takes step i along every chain. Returns whether any chain continues. */
static int lookup_step(const Drafter *d, Lookup *l, int i) {
    int goes_on = 0;
    for (int o = l->cross_problem; o < N_ORDERS; o++) {
        Walk *w = &l->walks[o];
        if (w->next == NONE || i >= visits(d, l, o)) continue;
        w->pos[i] = w->next;
        w->n = i + 1;
        w->next = l->s->links[w->next].next[o];
        if (w->next == NONE) continue;
        goes_on = 1;
        prefetch_pos(l->s, w->next);
    }
    return goes_on;
}

/* Stage 5: writes at most `room` candidates, each occurrence once: longest order first, newest first within an order.
 * In the shared store, texts of the request's problem are skipped. Returns the number of written candidates. */
static int lookup_collect(const Drafter *d, Lookup *l, int32_t seq, Candidate *cand, int room) {
    const Config *c = &d->c;
    const Store *s = l->s;
    int32_t above = c->max_match + 1, problem = d->x.seqs[seq].store;
    int n = 0;
    for (int o = N_ORDERS - 1; o >= l->cross_problem && n < room; o--) {
        Walk *w = &l->walks[o];
        int32_t n_visited = 0, max_visits = visits(d, l, o);
        for (int i = 0; n_visited < max_visits && n < room; i++) {
            uint32_t pos;
            if (i < w->n) pos = w->pos[i];
            else {                                     /* some visits did not count: continue from the walk's end */
                if (w->next == NONE) break;
                pos = w->next;
                w->next = s->links[pos].next[o];
            }
            int32_t id = seq_at(s, pos);
            const Seq *q = &d->x.seqs[id];
            if (q->state == DEAD) continue;
            n_visited++;
            if (l->cross_problem && q->origin == problem) continue;
            /* An occurrence that matches enough tokens for a longer order was already found through that order. */
            int32_t m = o == N_ORDERS - 1 || l->limit < MAX_ORDER ? match_length(s, l->end, pos, l->limit)
                                                                  : short_match(s, l->end, pos);
            int64_t age = q->state == LIVE ? 0 : d->tick - q->tick;
            if (age > SOURCES - 3) age = SOURCES - 3;
            cand[n] = (Candidate){.pos = pos, .tok = s->toks[pos], .match = m,
                                  .cross_problem = (uint8_t)l->cross_problem,
                                  .source = (uint8_t)(l->cross_problem ? CROSS_PROBLEM : id == seq ? 0 : 1 + age)};
            n += m < above;
        }
        above = ORDERS[o];
    }
    return n;
}
