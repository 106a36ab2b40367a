/* The history drafter's core: per-problem n-gram index over token sequences that grow while they are decoded.
 *
 * A store (one per problem) keeps its tokens in blocks of 64 positions; a sequence owns a doubly linked list of
 * blocks, so siblings that grow in turns stay contiguous enough to compare, and a position is one uint32. For each
 * order n, a hash table maps the n tokens before a position to the newest such position, and next[] chains to the
 * older ones. Chains may mix n-grams whose hashes collide: every occurrence is compared token by token before use.
 *
 * Evicted sequences are only marked; a sweep unlinks them once they outweigh the rest, which keeps the cost of
 * eviction proportional to the cost of insertion. das/drafter/reference.py answers the same questions by brute force:
 * change both together. Compile with -ffp-contract=off: a fused multiply-add would break ties differently.
 *
 * Not thread-safe: one call at a time per drafter. Functions return >= 0, or NO_MEMORY / BAD_TOKEN. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 64u
#define SHIFT 6
#define NONE UINT32_MAX
#define MAX_ORDERS 4
#define MAX_LEVELS 16
#define MAX_AGES 64
#define NO_MEMORY (-1)
#define BAD_TOKEN (-2)
#define TOO_LONG (-3)

enum { FREE, LIVE, HISTORY, DEAD };

/* Mirrored field by field in native.py. */
typedef struct {
    int32_t orders[MAX_ORDERS];      /* n-gram sizes that are indexed, ascending */
    int32_t levels[MAX_LEVELS];      /* match lengths at which counts are blended, ascending */
    double variety;                  /* occurrences the shorter matches' estimate is worth, per distinct next token */
    int32_t weights[MAX_AGES];       /* weight of an occurrence by the age of its sequence, in clock ticks */
    int32_t n_orders, n_levels, n_ages;
    int32_t max_match;               /* matches are compared up to this many tokens */
    int32_t max_candidates;          /* occurrences looked at per lookup */
    int32_t enough;                  /* occurrences that make a look at shorter orders unnecessary */
    int32_t exclude_own;             /* 1: a request's own text is no candidate */
    double min_prob;                 /* a draft ends before its cumulative probability falls below this */
} Config;

typedef struct { uint32_t head, tag; } Slot;
typedef struct { Slot *slots; uint64_t used; int bits; } Table;
typedef struct { int32_t seq; uint32_t prev, next; } Block;
typedef struct {
    int32_t *tok;                    /* [position] */
    uint32_t *next;                  /* [position][order]: the next older occurrence of the same n-gram */
    Block *blocks;                   /* [position / BLOCK] */
    uint32_t n_blocks, cap_blocks, free_block;
    Table tables[MAX_ORDERS];
    uint64_t dead, alive;            /* tokens */
    int used;
} Store;
typedef struct { int32_t store, state; int64_t clock; uint32_t first, last, len; } Seq;   /* last: block of the end */
typedef struct { uint32_t pos; int32_t match, weight, tok; } Candidate;
typedef struct { int32_t tok, count[MAX_LEVELS]; } Choice;

typedef struct {
    Config c;
    int64_t clock;
    Store *stores; int32_t n_stores;
    Seq *seqs; int32_t n_seqs, cap_seqs, free_seq;     /* free list threaded through Seq.store */
    int32_t *ctx; uint64_t *prefix; int64_t cap_ctx;   /* scratch: recent tokens and their prefix hashes */
    Candidate *cand; Choice *choice;                   /* scratch, max_candidates each */
    uint64_t power[MAX_ORDERS];                        /* BASE ** order */
    int8_t level_of[1024];                             /* match length -> highest level reached, -1: none */
} Drafter;

static const uint64_t BASE = 0x9E3779B97F4A7C15ull;

static uint32_t mix(uint64_t h) {
    h ^= h >> 32; h *= 0xD6E8FEB86659FD93ull; h ^= h >> 32; h *= 0xD6E8FEB86659FD93ull;
    return (uint32_t)(h >> 32);
}
/* Hash of the n tokens before index i of a text with the given prefix hashes. */
static uint32_t tag_of(const Drafter *d, const uint64_t *prefix, int64_t i, int o) {
    return mix(prefix[i] - prefix[i - d->c.orders[o]] * d->power[o]);
}

/* ---- hash tables: open addressing; the slot is chosen by the tag's top bits, so a rehash needs no tokens ---- */

static Slot *find(const Table *t, uint32_t tag) {
    uint64_t mask = (1ull << t->bits) - 1, i = (uint64_t)tag >> (32 - t->bits);
    while (t->slots[i].head != NONE && t->slots[i].tag != tag) i = (i + 1) & mask;
    return &t->slots[i];
}
static int table_alloc(Table *t, int bits) {
    t->slots = malloc(sizeof(Slot) << bits);
    if (!t->slots) return NO_MEMORY;
    memset(t->slots, 0xFF, sizeof(Slot) << bits);
    t->bits = bits; t->used = 0;
    return 0;
}
static void place(Table *t, Slot s) { *find(t, s.tag) = s; t->used++; }
static int table_reserve(Table *t) {                   /* room for one more at a load of at most 3/4 */
    if (t->slots && (t->used + 1) * 4 <= 3ull << t->bits) return 0;
    Table bigger;
    if (t->slots && t->bits >= 30) return TOO_LONG;
    if (table_alloc(&bigger, t->slots ? t->bits + 1 : 6)) return NO_MEMORY;
    if (t->slots)
        for (uint64_t i = 0; i < 1ull << t->bits; i++)
            if (t->slots[i].head != NONE) place(&bigger, t->slots[i]);
    free(t->slots);
    *t = bigger;
    return 0;
}

/* ---- stores and sequences ---- */

static void store_clear(Store *s) {
    for (int o = 0; o < MAX_ORDERS; o++) free(s->tables[o].slots);
    free(s->tok); free(s->next); free(s->blocks);
    memset(s, 0, sizeof *s);
    s->free_block = NONE;
}

void das_free(Drafter *d) {
    if (!d) return;
    for (int32_t i = 0; i < d->n_stores; i++) store_clear(&d->stores[i]);
    free(d->stores); free(d->seqs); free(d->ctx); free(d->prefix); free(d->cand); free(d->choice); free(d);
}

Drafter *das_new(const Config *config) {
    Drafter *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->c = *config;
    d->free_seq = -1;
    for (int o = 0; o < d->c.n_orders; o++) {
        d->power[o] = 1;
        for (int i = 0; i < d->c.orders[o]; i++) d->power[o] *= BASE;
    }
    for (int m = 0, l = -1; m <= d->c.max_match; m++) {
        while (l + 1 < d->c.n_levels && d->c.levels[l + 1] <= m) l++;
        d->level_of[m] = (int8_t)l;
    }
    d->cand = malloc(sizeof(Candidate) * (size_t)d->c.max_candidates);
    d->choice = malloc(sizeof(Choice) * (size_t)d->c.max_candidates);
    if (!d->cand || !d->choice) { das_free(d); return NULL; }
    return d;
}

int das_store_new(Drafter *d) {
    for (int32_t i = 0; i < d->n_stores; i++)
        if (!d->stores[i].used) { d->stores[i].used = 1; return i; }
    int32_t n = d->n_stores ? 2 * d->n_stores : 8, first = d->n_stores;
    Store *s = realloc(d->stores, sizeof(Store) * (size_t)n);
    if (!s) return NO_MEMORY;
    d->stores = s;
    memset(s + first, 0, sizeof(Store) * (size_t)(n - first));
    for (int32_t i = first; i < n; i++) s[i].free_block = NONE;
    d->n_stores = n;
    s[first].used = 1;
    return first;
}

int das_seq_new(Drafter *d, int32_t store) {
    int32_t i = d->free_seq;
    if (i >= 0) d->free_seq = d->seqs[i].store;
    else {
        if (d->n_seqs == d->cap_seqs) {
            int32_t cap = d->cap_seqs ? 2 * d->cap_seqs : 64;
            Seq *q = realloc(d->seqs, sizeof(Seq) * (size_t)cap);
            if (!q) return NO_MEMORY;
            d->seqs = q; d->cap_seqs = cap;
        }
        i = d->n_seqs++;
    }
    d->seqs[i] = (Seq){.store = store, .state = LIVE, .first = NONE, .last = NONE};
    return i;
}

static uint32_t end_pos(const Seq *q) { return q->last * BLOCK + ((q->len - 1) & (BLOCK - 1)); }

static uint32_t step_back(const Store *s, uint32_t pos) {
    return pos & (BLOCK - 1) ? pos - 1 : s->blocks[pos >> SHIFT].prev * BLOCK + BLOCK - 1;
}

static uint32_t block_new(Drafter *d, Store *s, int32_t seq) {
    uint32_t b = s->free_block;
    if (b != NONE) s->free_block = s->blocks[b].next;
    else {
        if (s->n_blocks == s->cap_blocks) {
            uint32_t cap = s->cap_blocks ? s->cap_blocks + s->cap_blocks / 2 : 8;
            if (cap >= (NONE >> SHIFT)) return NONE;
            size_t n = (size_t)cap * BLOCK;
            void *p;
            if (!(p = realloc(s->tok, n * sizeof(int32_t)))) return NONE;
            s->tok = p;
            if (!(p = realloc(s->next, n * sizeof(uint32_t) * (size_t)d->c.n_orders))) return NONE;
            s->next = p;
            if (!(p = realloc(s->blocks, cap * sizeof(Block)))) return NONE;
            s->blocks = p;
            s->cap_blocks = cap;
        }
        b = s->n_blocks++;
    }
    Seq *q = &d->seqs[seq];
    s->blocks[b] = (Block){.seq = seq, .prev = q->last, .next = NONE};
    if (q->last == NONE) q->first = b; else s->blocks[q->last].next = b;
    q->last = b;
    return b;
}

static int scratch(Drafter *d, int64_t n) {
    if (n <= d->cap_ctx) return 0;
    int32_t *c = realloc(d->ctx, sizeof(int32_t) * (size_t)n);
    if (!c) return NO_MEMORY;
    d->ctx = c;
    uint64_t *p = realloc(d->prefix, sizeof(uint64_t) * (size_t)(n + 1));
    if (!p) return NO_MEMORY;
    d->prefix = p; d->cap_ctx = n;
    return 0;
}

/* Fills ctx and prefix with the last tokens of a sequence, at most want; returns how many. */
static int64_t tail(Drafter *d, const Store *s, const Seq *q, int64_t want) {
    int64_t n = want < q->len ? want : q->len;
    uint32_t pos = n ? end_pos(q) : 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        d->ctx[i] = s->tok[pos];
        if (i) pos = step_back(s, pos);
    }
    d->prefix[0] = 0;
    for (int64_t i = 0; i < n; i++) d->prefix[i + 1] = d->prefix[i] * BASE + (uint64_t)d->ctx[i] + 1;
    return n;
}

static int append(Drafter *d, int32_t seq, const int32_t *toks, int64_t n, int indexed) {
    Seq *q = &d->seqs[seq];
    Store *s = &d->stores[q->store];
    int64_t longest = d->c.orders[d->c.n_orders - 1];
    if (q->len + n > INT32_MAX) return TOO_LONG;
    if (scratch(d, longest + n)) return NO_MEMORY;
    int64_t have = tail(d, s, q, indexed ? longest : 0);
    for (int64_t i = 0; i < n; i++) {
        if (q->len % BLOCK == 0 && block_new(d, s, seq) == NONE) return NO_MEMORY;
        uint32_t pos = q->last * BLOCK + q->len % BLOCK;
        s->tok[pos] = toks[i];
        uint32_t *next = s->next + (size_t)pos * (size_t)d->c.n_orders;
        for (int o = 0; o < d->c.n_orders; o++) {
            next[o] = NONE;
            if (!indexed || d->c.orders[o] > have + i) continue;
            int rc = table_reserve(&s->tables[o]);
            if (rc) return rc;
            uint32_t tag = tag_of(d, d->prefix, have + i, o);
            Slot *slot = find(&s->tables[o], tag);
            if (slot->head == NONE) s->tables[o].used++;
            next[o] = slot->head;
            *slot = (Slot){.head = pos, .tag = tag};
        }
        d->prefix[have + i + 1] = d->prefix[have + i] * BASE + (uint64_t)toks[i] + 1;
        q->len++;
        s->alive++;
    }
    return 0;
}

/* Appends toks[offsets[i] : offsets[i + 1]] to seqs[i]. All tokens are checked before any is stored. */
int das_append(Drafter *d, int32_t n, const int32_t *seqs, const int64_t *offsets, const int32_t *toks, int indexed) {
    for (int64_t i = 0; i < offsets[n]; i++)
        if (toks[i] < 0) return BAD_TOKEN;
    for (int32_t i = 0; i < n; i++) {
        int rc = append(d, seqs[i], toks + offsets[i], offsets[i + 1] - offsets[i], indexed);
        if (rc) return rc;
    }
    return 0;
}

/* Copies a sequence's tokens from index start on. */
void das_read(const Drafter *d, int32_t seq, int64_t start, int32_t *out) {
    const Seq *q = &d->seqs[seq];
    const Store *s = &d->stores[q->store];
    int64_t i = 0;
    for (uint32_t b = q->first; i < q->len; b = s->blocks[b].next)
        for (uint32_t j = 0; j < BLOCK && i < q->len; j++, i++)
            if (i >= start) out[i - start] = s->tok[b * BLOCK + j];
}

/* Unlinks every dead position, keeping the order of the rest, and frees its blocks and sequences. */
static int sweep(Drafter *d, Store *s) {
    for (int o = 0; o < d->c.n_orders; o++) {
        Table *t = &s->tables[o], fresh;
        if (!t->slots) continue;
        uint64_t used = 0;
        for (uint64_t i = 0; i < 1ull << t->bits; i++) {
            uint32_t *link = &t->slots[i].head;
            while (*link != NONE) {
                uint32_t *next = &s->next[(size_t)*link * (size_t)d->c.n_orders + (size_t)o];
                if (d->seqs[s->blocks[*link >> SHIFT].seq].state == DEAD) *link = *next;
                else link = next;
            }
            used += t->slots[i].head != NONE;
        }
        int bits = 6;
        while (used * 4 > 3ull << bits) bits++;
        if (table_alloc(&fresh, bits)) return NO_MEMORY;
        for (uint64_t i = 0; i < 1ull << t->bits; i++)
            if (t->slots[i].head != NONE) place(&fresh, t->slots[i]);
        free(t->slots);
        *t = fresh;
    }
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        int32_t id = s->blocks[b].seq;
        if (id < 0 || d->seqs[id].state != DEAD || d->seqs[id].first != b) continue;
        Seq *q = &d->seqs[id];
        for (uint32_t x = b, after; x != NONE; x = after) {
            after = s->blocks[x].next;
            s->blocks[x] = (Block){.seq = -1, .prev = NONE, .next = s->free_block};
            s->free_block = x;
        }
        *q = (Seq){.store = d->free_seq, .state = FREE};
        d->free_seq = id;
    }
    s->dead = 0;
    return 0;
}

/* keep: the sequence becomes history of the given clock; otherwise its tokens are forgotten. */
int das_end(Drafter *d, int32_t seq, int keep, int64_t clock) {
    Seq *q = &d->seqs[seq];
    Store *s = &d->stores[q->store];
    if (keep) { q->state = HISTORY; q->clock = clock; return 0; }
    if (!q->len) {
        *q = (Seq){.store = d->free_seq, .state = FREE};
        d->free_seq = seq;
        return 0;
    }
    q->state = DEAD;
    s->alive -= q->len; s->dead += q->len;
    return s->dead > s->alive + 1024 ? sweep(d, s) : 0;
}

/* Forgets a store whose sequences have all been forgotten. */
int das_store_end(Drafter *d, int32_t store) {
    Store *s = &d->stores[store];
    int rc = s->dead ? sweep(d, s) : 0;
    if (!rc) store_clear(s);
    return rc;
}

void das_clock(Drafter *d, int64_t clock) { d->clock = clock; }

int64_t das_bytes(const Drafter *d) {
    uint64_t total = sizeof *d + sizeof(Seq) * (uint64_t)d->cap_seqs + sizeof(Store) * (uint64_t)d->n_stores;
    for (int32_t i = 0; i < d->n_stores; i++) {
        const Store *s = &d->stores[i];
        total += (uint64_t)s->cap_blocks * (sizeof(Block) + BLOCK * 4ull * (1ull + (uint64_t)d->c.n_orders));
        for (int o = 0; o < MAX_ORDERS; o++)
            if (s->tables[o].slots) total += sizeof(Slot) << s->tables[o].bits;
    }
    return (int64_t)total;
}

/* ---- drafting ---- */

/* How many tokens before pos equal the end of the context, at most limit (limit <= context length). */
static int32_t match_length(const Store *s, const int32_t *ctx, int64_t len, uint32_t pos, int32_t limit) {
    int32_t m = 0;
    while (m < limit) {
        if (pos & (BLOCK - 1)) pos--;
        else {
            uint32_t b = s->blocks[pos >> SHIFT].prev;
            if (b == NONE) break;
            pos = b * BLOCK + BLOCK - 1;
        }
        if (s->tok[pos] != ctx[len - 1 - m]) break;
        m++;
    }
    return m;
}

/* Occurrences of the context's end: longest order first, newest first within an order, each once. */
static int gather(const Drafter *d, const Store *s, int32_t own, int64_t len) {
    const Config *c = &d->c;
    int n = 0, above = INT32_MAX;
    int32_t limit = len < c->max_match ? (int32_t)len : c->max_match;
    for (int o = c->n_orders - 1; o >= 0 && n < c->enough; o--) {
        if (c->orders[o] > len || !s->tables[o].slots) continue;
        uint32_t pos = find(&s->tables[o], tag_of(d, d->prefix, len, o))->head, older;
        for (int seen = 0; pos != NONE && seen < c->max_candidates && n < c->max_candidates; pos = older) {
            older = s->next[(size_t)pos * (size_t)c->n_orders + (size_t)o];
            if (older != NONE) {                       /* a chain jumps through memory: fetch the next while matching */
                __builtin_prefetch(&s->next[(size_t)older * (size_t)c->n_orders]);
                __builtin_prefetch(&s->tok[older]);
            }
            int32_t id = s->blocks[pos >> SHIFT].seq;
            const Seq *q = &d->seqs[id];
            if (q->state == DEAD || (c->exclude_own && id == own)) continue;
            int32_t m = match_length(s, d->ctx, len, pos, limit);
            if (m < c->orders[o]) continue;            /* a hash collision */
            seen++;
            if (m >= above) continue;                  /* found through a longer order already */
            int64_t age = q->state == LIVE ? 0 : d->clock - q->clock;
            int32_t w = c->weights[age < c->n_ages ? age : c->n_ages - 1];
            d->cand[n++] = (Candidate){.pos = pos, .match = m, .weight = w, .tok = s->tok[pos]};
        }
        above = c->orders[o];
    }
    return n;
}

/* The likeliest next token of n > 0 candidates, with its blended probability. */
static int32_t choose(const Drafter *d, int n, double *prob) {
    const Config *c = &d->c;
    int32_t total[MAX_LEVELS] = {0}, distinct[MAX_LEVELS] = {0}, tok = 0;
    double prior[MAX_LEVELS], scale[MAX_LEVELS], best = -1.0;
    int n_choices = 0, top = 0;
    for (int i = 0; i < n; i++) {
        const Candidate *k = &d->cand[i];
        int l = d->level_of[k->match], j = 0;
        while (j < n_choices && d->choice[j].tok != k->tok) j++;
        if (j == n_choices) d->choice[n_choices++] = (Choice){.tok = k->tok};
        d->choice[j].count[l] += k->weight;
        if (l > top) top = l;
    }
    for (int j = 0; j < n_choices; j++) {              /* from counts per level to counts of that level or more */
        int32_t *count = d->choice[j].count;
        for (int l = top, sum = 0; l >= 0; l--) {
            sum = count[l] += sum;
            total[l] += sum;
            distinct[l] += sum > 0;
        }
    }
    for (int l = 0; l <= top; l++) {
        prior[l] = c->variety * distinct[l] * c->weights[0];
        scale[l] = 1.0 / (total[l] + prior[l]);
    }
    for (int j = 0; j < n_choices; j++) {
        double p = 0.0;
        for (int l = 0; l <= top; l++) p = (d->choice[j].count[l] + prior[l] * p) * scale[l];
        if (p > best) { best = p; tok = d->choice[j].tok; }    /* ties: longest match, then newest */
    }
    *prob = best;
    return tok;
}

/* Candidates that continue with tok, moved one token on. */
static int follow(const Drafter *d, const Store *s, int n, int32_t tok) {
    int kept = 0;
    for (int i = 0; i < n; i++) {
        Candidate k = d->cand[i];
        if (k.tok != tok) continue;
        const Block *b = &s->blocks[k.pos >> SHIFT];
        if (k.pos == end_pos(&d->seqs[b->seq])) continue;
        k.pos = (k.pos + 1) & (BLOCK - 1) ? k.pos + 1 : b->next * BLOCK;
        k.match += k.match < d->c.max_match;
        k.tok = s->tok[k.pos];
        d->cand[kept++] = k;
    }
    return kept;
}

/* Drafts for n sequences. tokens, probs: [n][stride]; counts: [n]. */
int das_propose(Drafter *d, int32_t n, const int32_t *seqs, const int64_t *limits, int64_t stride, int32_t *tokens,
                double *probs, int64_t *counts) {
    for (int32_t r = 0; r < n; r++) {
        const Seq *q = &d->seqs[seqs[r]];
        const Store *s = &d->stores[q->store];
        if (scratch(d, d->c.max_match + limits[r] + 1)) return NO_MEMORY;
        int64_t len = tail(d, s, q, d->c.max_match), j = 0;
        double reach = 1.0, p;
        for (int k = 0; j < limits[r]; j++) {
            if (k < d->c.enough) k = gather(d, s, seqs[r], len);
            if (!k) break;
            int32_t tok = choose(d, k, &p);
            reach *= p;
            if (reach < d->c.min_prob) break;
            tokens[r * stride + j] = tok;
            probs[r * stride + j] = p;
            d->ctx[len] = tok;
            d->prefix[len + 1] = d->prefix[len] * BASE + (uint64_t)tok + 1;
            len++;
            k = follow(d, s, k, tok);
        }
        counts[r] = j;
    }
    return 0;
}
