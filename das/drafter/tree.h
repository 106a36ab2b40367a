/* Branching drafts: the nodes with the highest joint probabilities, best first.
 *
 * A node is expanded as in a chain: its candidates follow its token, their votes are mixed, and the best tokens
 * become its possible children. A heap holds, for each expanded node, the likeliest child that was not drafted yet.
 * The likeliest of these is drafted and expanded next. A child is never likelier than its parent, so nodes come in
 * order of falling joint probability, and any prefix is the best tree of its size. */
#include "draft.h"

/* A child that may be drafted next: the rank-th likeliest of an expanded node. */
typedef struct { double joint; int32_t node, rank; } Open;

/* An expanded node. Node 0 is the last emitted token; node i > 0 is the i-th drafted token. */
typedef struct {
    double joint, p[BEST];           /* P(all of the path is accepted); p [rank]: of its likeliest children */
    Candidate *cand;
    uint32_t (*pairs)[PAIRS];
    int32_t tok, parent, depth;      /* depth: number of drafted tokens on the path to here */
    int32_t n_children;              /* number of possible children, at most BEST; 0: no candidates */
    int32_t child[BEST];             /* [rank]: the child's node, or 0 if it was not drafted */
    int32_t place[BEST];             /* [rank]: the child's index among the mixture's best tokens */
    Mixed m;
} Node;

struct Tree {
    int32_t room, n_open;            /* nodes that may be drafted; size of the heap */
    int64_t context;                 /* number of tokens before the draft in Work.ctx */
    Open *open;                      /* [room]: a binary heap */
    Candidate *cand;                 /* [room * stride]: the expanded nodes' candidates, one list after the other */
    uint32_t (*pairs)[PAIRS];        /* [room * stride]: their distributions; NULL unless remembered */
    Node nodes[];                    /* [room] */
};

/* Makes room for a tree of this many nodes. The last tree's predictions are dropped. */
static int tree_reserve(Trace *t, int64_t room) {
    t->n_nodes = 0;
    if (t->tree && t->tree->room >= room) return 0;
    free(t->tree);
    size_t nodes = sizeof(Node) * (size_t)room, open = sizeof(Open) * (size_t)room;
    size_t candidates = (size_t)(room * t->stride), pairs = t->pairs ? sizeof *t->pairs * candidates : 0;
    t->tree = malloc(sizeof(Tree) + nodes + open + sizeof(Candidate) * candidates + pairs);
    if (!t->tree) return NO_MEMORY;
    t->tree->room = (int32_t)room;
    t->tree->open = (Open *)((char *)t->tree->nodes + nodes);
    t->tree->cand = (Candidate *)((char *)t->tree->open + open);
    t->tree->pairs = pairs ? (uint32_t (*)[PAIRS])(t->tree->cand + candidates) : NULL;
    return 0;
}

static uint64_t tree_bytes(const Trace *t) {
    if (!t->tree) return 0;
    return sizeof(Tree) + (uint64_t)t->tree->room * (sizeof(Node) + sizeof(Open) + (sizeof(Candidate) + (t->pairs ? sizeof *t->pairs : 0)) * (uint64_t)t->stride);
}

static void start_tree(Work *w) {
    Tree *t = w->t->tree;
    t->n_open = 0;
    t->context = w->len;
    t->nodes[0].joint = 1.0;
    t->nodes[0].depth = 0;
    w->cand = t->cand;
    if (w->pairs) w->pairs = t->pairs;
}

/* Whether a comes before b. Each node has one child in the heap, so no two entries are equal. */
static int precedes(const Open *a, const Open *b) {
    return a->joint > b->joint || (a->joint == b->joint && a->node < b->node);
}

/* Adds the rank-th likeliest child of a node to the heap, if there is one that reaches the floor. */
static void open_child(Tree *t, int32_t node, int32_t rank, double floor) {
    const Node *of = &t->nodes[node];
    if (rank >= of->n_children) return;
    Open added = {of->joint * of->p[rank], node, rank};
    if (added.joint < floor) return;
    int32_t i = t->n_open++;
    for (int32_t up; i && precedes(&added, &t->open[up = (i - 1) / 2]); i = up) t->open[i] = t->open[up];
    t->open[i] = added;
}

/* Takes the likeliest child from the heap. */
static Open take_child(Tree *t) {
    Open first = t->open[0], last = t->open[--t->n_open];
    int32_t i = 0;
    for (int32_t down; (down = 2 * i + 1) < t->n_open; i = down) {
        if (down + 1 < t->n_open && precedes(&t->open[down + 1], &t->open[down])) down++;
        if (!precedes(&t->open[down], &last)) break;
        t->open[i] = t->open[down];
    }
    t->open[i] = last;
    return first;
}

/* Sorts a mixed node's best tokens by corrected probability. The correction changes the odds of the likeliest token
 * against all others, so the others keep their proportions. On ties, the larger share comes first. */
static void rank_children(const Factors *w, Node *node) {
    const Mixed *m = &node->m;
    int b = likeliest(m);
    Lanes p = m->p;
    p[b] = m->p[b] * late_factor(w, node->depth);
    p /= p[b] + (1.0 - m->p[b]);
    node->n_children = m->n_best;
    for (int i = 0; i < m->n_best; i++) {
        int rank = i;
        for (; rank && node->p[rank - 1] < p[i]; rank--) {
            node->p[rank] = node->p[rank - 1];
            node->place[rank] = node->place[rank - 1];
        }
        node->p[rank] = p[i];
        node->place[rank] = i;
        node->child[i] = 0;
    }
}

/* Selects a drafted node for expansion: finds its candidates, or sets the context to look them up. */
static void enter_node(const Drafter *d, Work *w, int32_t i) {
    Tree *t = w->t->tree;
    const Node *node = &t->nodes[i], *from = &t->nodes[node->parent];
    w->cand += w->n_cand;
    if (w->pairs) w->pairs += w->n_cand;
    w->n_cand = go_on(d, w, &from->m, from->cand, node->tok, w->cand);
    if (w->n_cand) return;
    int32_t *end = w->ctx + (w->len = t->context + node->depth);
    for (; i; i = t->nodes[i].parent) *--end = t->nodes[i].tok;
}

/* Expands node j of a request's tree, and drafts the likeliest of all open children or ends the draft. */
static void draft_node(const Drafter *d, Work *w, int64_t j, int32_t *token, int32_t *parent, double *prob,
                       double *joint) {
    Tree *t = w->t->tree;
    Node *node = &t->nodes[j];
    w->t->n_nodes = (int32_t)j + 1;
    node->cand = w->cand;
    node->pairs = w->pairs;
    node->n_children = 0;
    if (w->n_cand) {
        mix_at(d, w, node->depth, &node->m);
        rank_children(factors_for(d, w->t), node);
        open_child(t, (int32_t)j, 0, w->floor);
    }
    if (!t->n_open) { w->done = 1; return; }
    Open best = take_child(t);
    open_child(t, best.node, best.rank + 1, w->branch_floor);
    Node *from = &t->nodes[best.node];
    from->child[best.rank] = (int32_t)j + 1;
    *token = from->m.best[from->place[best.rank]];
    *parent = best.node - 1;
    *prob = from->p[best.rank];
    *joint = best.joint;
    if (j + 1 == w->limit) return;
    Node *drafted = &t->nodes[j + 1];
    drafted->joint = best.joint; drafted->tok = *token; drafted->parent = best.node; drafted->depth = from->depth + 1;
    enter_node(d, w, (int32_t)j + 1);
}

/* Learns from the last tree's predictions along the emitted path, then drops the tree. */
static void learn_from_tree(Drafter *d, Trace *t, const int32_t *toks, int64_t n) {
    for (int32_t i = 0, at = 0; i < POSITIONS && i < n && at < t->n_nodes; i++) {
        Node *node = &t->tree->nodes[at];
        if (!node->n_children) break;
        if (i < TRACE) learn(&d->w[knows_noise(t)], node->cand, node->pairs, &node->m, toks[i]);
        int b = likeliest(&node->m), rank = 0;
        for (int r = 0; r < node->n_children; r++) if (node->place[r] == b) rank = r;
        learn_late(&d->w[knows_noise(t)].f, i, node->p[rank], node->m.best[b] == toks[i]);
        for (rank = 0; rank < node->n_children && node->m.best[node->place[rank]] != toks[i];) rank++;
        if (rank == node->n_children || !node->child[rank]) break;
        at = node->child[rank];
    }
    t->n_nodes = 0;
}
