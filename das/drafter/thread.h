/* Drafting beside Python: a thread that takes in the tokens of a pass as soon as they are in memory, and drafts for the
 * next one. A core has one such thread, from its first job on. It owns the core from das_post to das_wait, and sleeps
 * without a job. It polls only where a device writes the tokens. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define SPINS 2000                   /* looks at the memory before others may run in between */

/* Mirrored field by field in native.py. n requests are in `rows` of a batch; `width` and `stride`: the most tokens that a
 * pass emits for one, and the most that are drafted for one. */
typedef struct {
    int32_t n, batch, width, stride, late_width, learns;
    const int64_t *handles, *rows;                    /* [n] */
    const int64_t *left;             /* [n]: tokens that may be drafted behind the text, had the pass emitted none */
    const int64_t *caps;             /* [n]: the longest draft */
    const double *floors;            /* [n], or NULL */
    const int32_t *stops;            /* all requests' stop tokens */
    const int64_t *stop_ends;        /* [n]: where those of each end */
    const int64_t *tokens;           /* [batch][2 + width]: how many tokens a request emitted and verified, the tokens */
    const uint32_t *pairs;           /* [batch's rows of logits][PAIRS], or NULL */
    const int64_t *num_drafted;      /* a request's rows of logits are one more, and lie together */
    int64_t drafted_stride, number;
    const int64_t *arrived;          /* at least `number` once tokens and pairs are there; NULL: they are */
    int64_t *late, *late_counts;     /* drafts for the device, [batch][late_width], and how many tokens; or NULL */
    double *late_probs;              /* [batch][late_width] */
    int64_t *mark;                   /* where `number` says that they are there */
    int64_t *kept;                   /* [n]: tokens that joined the text */
    int32_t *drafts;                 /* [n][stride] */
    double *probs;                   /* [n][stride] */
    int64_t *counts, *limits;        /* [n]; limits: what was asked for */
    int64_t code;                    /* 0, or an error */
} Job;

typedef struct Thread {
    pthread_t id;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Job *job;                        /* not done yet; NULL: none */
    _Atomic int ends;
} Thread;

/* Waits until the job's tokens are in memory. Returns 1; 0 if the drafter ends before. */
static int await_tokens(Thread *t, const Job *j) {
    for (int64_t looks = 0; j->arrived && __atomic_load_n(j->arrived, __ATOMIC_ACQUIRE) < j->number; looks++) {
        if (looks < SPINS) continue;
        if (atomic_load(&t->ends)) return 0;
        sched_yield();
    }
    return 1;
}

/* Where each request's rows of logits begin. */
static void first_rows(const Job *j, int64_t *first) {
    for (int64_t b = 0, row = 0; b < j->batch; b++) {
        first[b] = row;
        row += 1 + j->num_drafted[b * j->drafted_stride];
    }
}

/* Appends what the pass emitted for request r, up to its first stop token. row: its first row of logits. */
static int take_in(Drafter *d, Job *j, int32_t r, int64_t row, int32_t *toks) {
    const int64_t *own = j->tokens + j->rows[r] * (2 + j->width), n = own[0];
    int64_t first = r ? j->stop_ends[r - 1] : 0, kept = 0;
    for (int stopped = 0; kept < n && !stopped; kept++) {
        toks[kept] = (int32_t)own[2 + kept];
        if (toks[kept] < 0) return BAD_TOKEN;
        for (int64_t s = first; s < j->stop_ends[r]; s++) stopped |= j->stops[s] == toks[kept];
    }
    int64_t limit = j->left[r] - kept < j->caps[r] ? j->left[r] - kept : j->caps[r];
    if (limit > j->stride) limit = j->stride;
    j->kept[r] = kept;
    j->limits[r] = limit > 0 ? limit : 0;
    return extend(d, (int32_t)j->handles[r], toks, j->pairs ? j->pairs + row * PAIRS : NULL, kept, 1, j->learns);
}

static void write_late(const Job *j) {
    memset(j->late_counts, 0, sizeof *j->late_counts * (size_t)j->batch);
    for (int32_t r = 0; r < j->n; r++) {
        int64_t at = j->rows[r] * j->late_width, n = j->counts[r] < j->late_width ? j->counts[r] : j->late_width;
        j->late_counts[j->rows[r]] = n;
        for (int64_t k = 0; k < j->late_width; k++) {
            j->late[at + k] = k < n ? j->drafts[r * j->stride + k] : 0;
            j->late_probs[at + k] = k < n ? j->probs[r * j->stride + k] : 0.0;
        }
    }
    __atomic_store_n(j->mark, j->number, __ATOMIC_RELEASE);
}

static int do_job(Drafter *d, Thread *t, Job *j) {
    int rc = 0;
    if (!await_tokens(t, j)) return 0;
    int64_t *first = calloc((size_t)j->batch + (size_t)(j->width + 2) / 2, sizeof *first);
    if (!first) return NO_MEMORY;
    int32_t *toks = (int32_t *)(first + j->batch);
    if (j->pairs) first_rows(j, first);
    for (int32_t r = 0; !rc && r < j->n; r++) rc = take_in(d, j, r, first[j->rows[r]], toks);
    free(first);
    if (!rc) rc = das_propose(d, j->n, j->handles, j->limits, j->floors, j->stride, j->drafts, j->probs, j->counts);
    if (!rc && j->late) write_late(j);
    return rc;
}

static void *work(void *core) {
    Drafter *d = core;
    Thread *t = d->thread;
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->job && !atomic_load(&t->ends)) pthread_cond_wait(&t->changed, &t->lock);
        Job *j = t->job;
        if (!j) break;
        pthread_mutex_unlock(&t->lock);
        j->code = do_job(d, t, j);
        pthread_mutex_lock(&t->lock);
        t->job = NULL;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* Waits until there is no job. Calls from Python come here first. */
void das_wait(Drafter *d) {
    Thread *t = d->thread;
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    while (t->job) pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

/* Hands a job to the thread. It and its arrays stay until das_wait. Returns 0, or NO_MEMORY if no thread can start. */
int das_post(Drafter *d, Job *job) {
    Thread *t = d->thread;
    if (!t) {
        if (!(t = calloc(1, sizeof *t))) return NO_MEMORY;
        pthread_mutex_init(&t->lock, NULL);
        pthread_cond_init(&t->changed, NULL);
        d->thread = t;
        if (pthread_create(&t->id, NULL, work, d)) {
            d->thread = NULL;
            free(t);
            return NO_MEMORY;
        }
    }
    pthread_mutex_lock(&t->lock);
    while (t->job) pthread_cond_wait(&t->changed, &t->lock);
    t->job = job;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

/* Ends the thread. It gives up a job whose tokens have not come. */
static void end_thread(Drafter *d) {
    Thread *t = d->thread;
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->ends, 1);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->id, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
    d->thread = NULL;
}

void das_free(Drafter *d) { end_thread(d); clear(d); free(d); }
