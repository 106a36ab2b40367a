/* The n-gram index: token sequences that grow while they are decoded. They are grouped in stores, and a lookup in
 * one store never finds tokens of another.
 *
 * A store keeps its tokens in blocks of 32 positions. Each sequence owns a doubly linked list of blocks, so a
 * position is one uint32 and siblings that grow in turns need not be moved. For each order n, a hash table maps an
 * n-gram to the newest position that follows it, and next[] chains that position to the older ones, newest first.
 * Slots hold positions only: n-grams are compared in the text itself, so a chain never mixes two n-grams. Hashes have a
 * secret key, so that nobody can write a text whose n-grams all get the same slots. If a
 * request's own text must not give candidates, others[] skips it: it leads to the next older position of another
 * sequence.
 *
 * Evicting a sequence only marks it as dead. Between rollouts, when the history tick moves, a sweep unlinks the dead
 * tokens of stores in which they outnumber the live ones. So the cost of eviction is proportional to that of
 * insertion, and a rollout spends no time on it unless very many tokens die in it.
 *
 * Functions that return int return a value >= 0, or one of the negative codes below. */
#include "distributions.h"

#define BLOCK 32u                    /* positions in a block */
#define SHIFT 5                      /* log2(BLOCK) */
#define NONE UINT32_MAX              /* no position, no block, an empty slot */
#define DEAD_ALLOWANCE 4096u         /* dead tokens that a store may hold beyond three times its live ones */
#define SWEEP_ALLOWANCE 1024u        /* dead tokens that a store may hold beyond its live ones between rollouts */
#define NO_TOKEN (-1)
#define N_ORDERS 3
#define MAX_ORDER 4
#define NO_MEMORY (-1)
#define BAD_TOKEN (-2)
#define TOO_LONG (-3)
#define NOT_LIVE (-4)
#define BUSY (-5)                    /* a call names a sequence twice */
#define BAD_FLOOR (-6)

static const int ORDERS[N_ORDERS] = {1, 2, MAX_ORDER};

enum { FREE, LIVE, HISTORY, DEAD };                    /* states of a sequence */

typedef struct { uint64_t factor; uint32_t start; } Key;   /* of hashes; the factor is odd */
typedef struct { uint32_t *slots; uint32_t size, used; } Table;
typedef struct { int32_t seq; uint32_t prev, next; } Block;
typedef struct { uint32_t next[N_ORDERS]; } Links;     /* by order: the next older position with the n-gram */
typedef struct {
    int32_t *toks;                   /* [position] */
    Links *links;                    /* [position] */
    Block *blocks;                   /* [position / BLOCK] */
    uint8_t *heads;                  /* [position]: head of the token's distribution; NULL unless they are remembered */
    uint32_t **pairs;                /* [position / BLOCK]: the pairs of its positions, one after the other */
    uint32_t n_blocks, cap_blocks, free_block;
    Table tables[N_ORDERS];
    Key key;
    uint64_t dead, alive;            /* numbers of tokens */
    int32_t next_free;               /* the next unused store */
} Store;

struct Trace;
static void trace_free(struct Trace *t);
typedef struct {
    int32_t store, state, generation;  /* generation: the upper half of its handle; 0: free */
    int64_t tick;                    /* the history tick in which it finished */
    uint32_t first, last, len;       /* first and last block; number of tokens */
    int32_t origin;                  /* the store that its text comes from (for shared copies: not `store`) */
    struct Trace *trace;             /* the last draft, to learn from; NULL if the sequence is never drafted for */
} Seq;

typedef struct {
    Store *stores; int32_t n_stores, free_store;       /* the free list is threaded through Store.next_free */
    Seq *seqs; int32_t n_seqs, cap_seqs, free_seq;     /* the free list is threaded through Seq.store */
    int32_t generation;              /* generation of the newest sequence */
    Key key;                         /* of all stores */
    int remembers;                   /* 1: stores have `heads` and `pairs` */
} Index;

/* Returns a sequence's handle. Places in `seqs` are used again, handles are not, so an old handle finds nothing. */
static int64_t handle_of(const Index *x, int32_t i) { return (int64_t)x->seqs[i].generation << 32 | i; }
/* Returns the place of a handle's sequence, or NOT_LIVE if the sequence was freed. */
static int32_t place_of(const Index *x, int64_t handle) {
    int32_t i = (int32_t)handle;
    return i < x->n_seqs && x->seqs[i].generation == (int32_t)(handle >> 32) ? i : NOT_LIVE;
}

static uint32_t hash_step(uint64_t factor, uint32_t h, int32_t tok) {
    uint64_t x = (uint64_t)(h ^ (uint32_t)tok) * factor + (uint64_t)(uint32_t)tok * 0xD6E8FEB9u;
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}
/* The slot at which the search for a hash starts. Table sizes need not be powers of two. */
static uint32_t slot_of(uint32_t hash, uint32_t size) {
    return (uint32_t)(((uint64_t)(hash * 0x85EBCA6Bu) * size) >> 32);
}

/* The position of a sequence's last token. */
static uint32_t end_pos(const Seq *q) { return q->last * BLOCK + ((q->len - 1) & (BLOCK - 1)); }

static uint32_t step_back(const Store *s, uint32_t pos) {
    return pos & (BLOCK - 1) ? pos - 1 : s->blocks[pos >> SHIFT].prev * BLOCK + BLOCK - 1;
}
/* The next position, or NONE after a sequence's last block. Within that block, tokens after the end are NO_TOKEN. */
static uint32_t step_on(const Store *s, uint32_t pos) {
    if ((pos + 1) & (BLOCK - 1)) return pos + 1;
    uint32_t next = s->blocks[pos >> SHIFT].next;
    return next == NONE ? NONE : next * BLOCK;
}

static int32_t seq_at(const Store *s, uint32_t pos) { return s->blocks[pos >> SHIFT].seq; }

/* Whether the n tokens before pos equal the n tokens before `end`. At least n tokens must precede pos. */
static int same_context(const Store *s, uint32_t pos, const int32_t *end, int n) {
    for (int i = 1; i <= n; i++) {
        pos = step_back(s, pos);
        if (s->toks[pos] != end[-i]) return 0;
    }
    return 1;
}

/* Writes, by order, the hashes of the last 1, 2 and 4 tokens before `end`. Only `available` tokens precede it. */
static void hashes(const Store *s, const int32_t *end, int64_t available, uint32_t *out) {
    uint32_t h = s->key.start;
    for (int i = 1, o = 0; i <= MAX_ORDER && i <= available; i++) {
        h = hash_step(s->key.factor, h, end[-i]);
        if (i == ORDERS[o]) out[o++] = h;
    }
}

/* The slot of the n-gram before `end`. It holds the n-gram's newest position, or NONE if the n-gram is new. */
static uint32_t *find(const Store *s, int o, uint32_t hash, const int32_t *end) {
    const Table *t = &s->tables[o];
    uint32_t i = slot_of(hash, t->size);
    while (t->slots[i] != NONE && !same_context(s, t->slots[i], end, ORDERS[o])) i = i + 1 < t->size ? i + 1 : 0;
    return &t->slots[i];
}

/* Moves an order's table to a new size. */
static int table_rebuild(Store *s, int o, uint64_t size) {
    Table *t = &s->tables[o], fresh = {.size = (uint32_t)size, .used = t->used};
    if (size >= NONE) return TOO_LONG;
    if (!(fresh.slots = malloc(sizeof(uint32_t) * size))) return NO_MEMORY;
    memset(fresh.slots, 0xFF, sizeof(uint32_t) * size);
    for (uint32_t i = 0; i < t->size; i++) {
        if (t->slots[i] == NONE) continue;
        int32_t context[MAX_ORDER];
        uint32_t pos = t->slots[i], h[N_ORDERS];
        for (int j = 1; j <= ORDERS[o]; j++) context[MAX_ORDER - j] = s->toks[pos = step_back(s, pos)];
        hashes(s, context + MAX_ORDER, ORDERS[o], h);
        uint32_t k = slot_of(h[o], fresh.size);
        while (fresh.slots[k] != NONE) k = k + 1 < fresh.size ? k + 1 : 0;
        fresh.slots[k] = t->slots[i];
    }
    free(t->slots);
    *t = fresh;
    return 0;
}
/* Makes room for one more n-gram at a load of at most 3/4. */
static int table_reserve(Store *s, int o) {
    const Table *t = &s->tables[o];
    if (((uint64_t)t->used + 1) * 4 <= (uint64_t)t->size * 3) return 0;
    return table_rebuild(s, o, t->size ? (uint64_t)t->size + t->size / 4 + 1 : 16);
}

static void store_clear(Store *s) {
    for (int o = 0; o < N_ORDERS; o++) free(s->tables[o].slots);
    for (uint32_t b = 0; s->pairs && b < s->n_blocks; b++) free(s->pairs[b]);
    free(s->toks); free(s->links); free(s->blocks); free(s->heads); free(s->pairs);
    *s = (Store){.free_block = NONE};
}

static int32_t store_new(Index *x) {
    if (x->free_store < 0) {
        int32_t n = x->n_stores ? 2 * x->n_stores : 4;
        if (resize(&x->stores, sizeof(Store) * (size_t)n)) return NO_MEMORY;
        for (int32_t i = n - 1; i >= x->n_stores; i--) {
            x->stores[i] = (Store){.free_block = NONE, .next_free = x->free_store};
            x->free_store = i;
        }
        x->n_stores = n;
    }
    int32_t i = x->free_store;
    x->free_store = x->stores[i].next_free;
    x->stores[i].key = x->key;
    return i;
}
static void store_free(Index *x, int32_t i) {
    store_clear(&x->stores[i]);
    x->stores[i].next_free = x->free_store;
    x->free_store = i;
}

static int32_t seq_new(Index *x, int32_t store, int32_t origin) {
    int32_t i = x->free_seq;
    if (i >= 0) x->free_seq = x->seqs[i].store;
    else {
        if (x->n_seqs == x->cap_seqs) {
            int32_t cap = x->cap_seqs + x->cap_seqs / 4 + 16;
            if (resize(&x->seqs, sizeof(Seq) * (size_t)cap)) return NO_MEMORY;
            x->cap_seqs = cap;
        }
        i = x->n_seqs++;
    }
    x->generation = x->generation < INT32_MAX ? x->generation + 1 : 1;
    x->seqs[i] = (Seq){.store = store, .state = LIVE, .generation = x->generation, .first = NONE, .last = NONE, .origin = origin};
    return i;
}
static void seq_free(Index *x, int32_t i) {
    trace_free(x->seqs[i].trace);
    x->seqs[i] = (Seq){.store = x->free_seq, .state = FREE};
    x->free_seq = i;
}

/* Appends an empty block to a sequence. Returns the block, or NONE if there is no memory. */
static uint32_t block_new(Index *x, Store *s, int32_t seq) {
    uint32_t b = s->free_block;
    if (b != NONE) s->free_block = s->blocks[b].next;
    else {
        if (s->n_blocks == s->cap_blocks) {
            uint32_t cap = s->cap_blocks + s->cap_blocks / 8 + 2;
            if (cap >= (NONE >> SHIFT)) return NONE;
            size_t n = (size_t)cap * BLOCK;
            if (resize(&s->toks, n * sizeof(int32_t)) || resize(&s->links, n * sizeof(Links)) ||
                resize(&s->blocks, cap * sizeof(Block))) return NONE;
            if (x->remembers && (resize(&s->heads, n) || resize(&s->pairs, cap * sizeof(uint32_t *)))) return NONE;
            s->cap_blocks = cap;
        }
        b = s->n_blocks++;
        if (x->remembers) s->pairs[b] = NULL;
    }
    Seq *q = &x->seqs[seq];
    s->blocks[b] = (Block){.seq = seq, .prev = q->last, .next = NONE};
    for (uint32_t i = 0; i < BLOCK; i++) s->toks[b * BLOCK + i] = NO_TOKEN;
    if (q->last == NONE) q->first = b; else s->blocks[q->last].next = b;
    q->last = b;
    return b;
}

/* Copies the last tokens of a sequence, at most `max_tokens`. Returns their number. */
static int64_t tail(const Store *s, const Seq *q, int64_t max_tokens, int32_t *out) {
    int64_t n = max_tokens < q->len ? max_tokens : q->len;
    uint32_t pos = n ? end_pos(q) : 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        out[i] = s->toks[pos];
        if (i) pos = step_back(s, pos);
    }
    return n;
}

static int remember_at(Store *s, uint32_t pos, const uint32_t *pairs) {
    uint32_t i = pos & (BLOCK - 1);
    return remember(s->heads + pos - i, &s->pairs[pos >> SHIFT], i, s->toks[pos], pairs);
}
static int recall_at(const Store *s, uint32_t pos, uint32_t *pairs) {
    uint32_t i = pos & (BLOCK - 1);
    return recall(s->heads + pos - i, &s->pairs[pos >> SHIFT], i, s->toks[pos], pairs);
}

/* Appends n tokens to a sequence, and indexes the orders from `first_order` on; N_ORDERS: none. pairs: [n][PAIRS], the
 * tokens' distributions, or NULL if they are unknown. */
static int append(Index *x, int32_t seq, const int32_t *toks, const uint32_t *pairs, int64_t n, int first_order) {
    Seq *q = &x->seqs[seq];
    Store *s = &x->stores[q->store];
    if (q->len + n > INT32_MAX) return TOO_LONG;
    int32_t context[2 * MAX_ORDER];                    /* the last tokens; when full, they are moved to its start */
    int64_t available = tail(s, q, MAX_ORDER, context);
    for (int64_t i = 0; i < n; i++) {
        if (q->len % BLOCK == 0 && block_new(x, s, seq) == NONE) return NO_MEMORY;
        uint32_t pos = q->last * BLOCK + q->len % BLOCK, h[N_ORDERS];
        s->toks[pos] = toks[i];
        if (x->remembers && remember_at(s, pos, pairs ? pairs + i * PAIRS : NULL)) return NO_MEMORY;
        s->links[pos] = (Links){{NONE, NONE, NONE}};
        hashes(s, context + available, available, h);
        for (int o = first_order; o < N_ORDERS && ORDERS[o] <= available; o++) {
            int rc = table_reserve(s, o);
            if (rc) return rc;
            uint32_t *slot = find(s, o, h[o], context + available);
            s->tables[o].used += *slot == NONE;
            s->links[pos].next[o] = *slot;
            *slot = pos;
        }
        if (available == 2 * MAX_ORDER) {
            memcpy(context, context + MAX_ORDER, sizeof(int32_t) * MAX_ORDER);
            available = MAX_ORDER;
        }
        context[available++] = toks[i];
        q->len++;
        s->alive++;
    }
    return 0;
}

/* Unlinks all dead positions, keeps the order of the live ones, and frees dead sequences with their blocks. */
static int sweep(Index *x, Store *s) {
    for (int o = 0; o < N_ORDERS; o++) {
        Table *t = &s->tables[o];
        uint32_t used = 0;
        for (uint32_t i = 0; i < t->size; i++) {
            uint32_t *link = &t->slots[i];
            while (*link != NONE) {
                uint32_t *next = &s->links[*link].next[o];
                if (x->seqs[seq_at(s, *link)].state == DEAD) *link = *next;
                else link = next;
            }
            used += t->slots[i] != NONE;
        }
        t->used = used;
        int rc = t->size ? table_rebuild(s, o, 16 + (uint64_t)used * 3 / 2) : 0;
        if (rc) return rc;
    }
    for (uint32_t b = 0; b < s->n_blocks; b++) {
        int32_t id = s->blocks[b].seq;
        if (id < 0 || x->seqs[id].state != DEAD || x->seqs[id].first != b) continue;
        for (uint32_t y = b, after; y != NONE; y = after) {
            after = s->blocks[y].next;
            if (x->remembers) { free(s->pairs[y]); s->pairs[y] = NULL; }
            s->blocks[y] = (Block){.seq = -1, .prev = NONE, .next = s->free_block};
            s->free_block = y;
        }
        seq_free(x, id);
    }
    s->dead = 0;
    if (!s->alive) store_clear(s);
    return 0;
}

/* Ends a sequence. keep: it becomes history of the given tick; otherwise its tokens are forgotten. */
static int seq_end(Index *x, int32_t seq, int keep, int64_t tick) {
    Seq *q = &x->seqs[seq];
    Store *s = &x->stores[q->store];
    trace_free(q->trace);
    q->trace = NULL;
    if (keep) { q->state = HISTORY; q->tick = tick; return 0; }
    if (!q->len) { seq_free(x, seq); return 0; }
    q->state = DEAD;
    s->alive -= q->len; s->dead += q->len;
    return s->dead > 3 * s->alive + DEAD_ALLOWANCE || !s->alive ? sweep(x, s) : 0;
}

/* Sweeps the stores whose dead tokens outnumber the live ones. */
static int sweep_all(Index *x) {
    int rc = 0;
    for (int32_t i = 0; i < x->n_stores && !rc; i++)
        if (x->stores[i].dead > x->stores[i].alive + SWEEP_ALLOWANCE) rc = sweep(x, &x->stores[i]);
    return rc;
}
