/* Remembered distributions: beside each token, the index keeps the likeliest tokens of the distribution it came from.
 *
 * A pair is a token and its probability in one word, token << 5 | level; the probability is exp(-level / 4). Callers
 * pass a distribution as PAIRS pairs, likeliest first, padded with NO_PAIR. It is stored beside its token as a head and
 * the pairs of the other tokens. If a distribution lists no other tokens, only the head is stored.
 *
 * A head is one byte: the number of other tokens in its upper 3 bits, and the token's own level in its lower 5. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS 4                      /* tokens of a distribution that are remembered */
#define NO_PAIR UINT32_MAX
#define UNLISTED 31                  /* a level: the token is not among the likeliest */
#define UNKNOWN 30                   /* a head: no distribution is remembered; greater levels than 29 do not occur */
#define PAIR_TOKENS (1u << 26)       /* only smaller token ids can form pairs */
#define PAIRS_GROW 4u                /* memory for a block's pairs grows by this many */

static int32_t token_of(uint32_t pair) { return (int32_t)(pair >> 5); }
static uint32_t level_of(uint32_t pair) { return pair & 31; }

static uint32_t num_others(uint8_t head) { return head >> 5; }

/* Returns the number of pairs of the first n positions of a block, n < 32. Adds up eight heads at a time. */
static uint32_t pairs_before(const uint8_t *heads, uint32_t n) {
    uint64_t eight, total = 0;
    for (; n >= 8; n -= 8, heads += 8) {
        memcpy(&eight, heads, sizeof eight);
        total += eight >> 5 & 0x0707070707070707u;     /* at most 3 * 7 in a byte */
    }
    for (; n; n--) total += num_others(*heads++);
    return (uint32_t)(total * 0x0101010101010101u >> 56);
}

/* Changes the size of the array at *array, a pointer. Returns 0, or 1 if there is no memory. */
static int resize(void *array, size_t bytes) {
    void *old, *resized;
    memcpy(&old, array, sizeof old);
    if (!(resized = realloc(old, bytes))) return 1;
    memcpy(array, &resized, sizeof resized);
    return 0;
}

static uint32_t pair_room(uint32_t n) { return (n + PAIRS_GROW - 1) / PAIRS_GROW * PAIRS_GROW; }

/* Remembers the distribution of a block's i-th token. pairs: [PAIRS], or NULL if it is unknown. Returns 0, or a negative
 * number if there is no memory. */
static int remember(uint8_t *heads, uint32_t **block, uint32_t i, int32_t tok, const uint32_t *pairs) {
    uint32_t others[PAIRS], level = UNLISTED, n = 0;
    heads[i] = UNKNOWN;
    if (!pairs || pairs[0] == NO_PAIR) return 0;
    for (int k = 0; k < PAIRS && pairs[k] != NO_PAIR; k++) {
        if (level_of(pairs[k]) >= UNKNOWN || pairs[k] >> 5 >= PAIR_TOKENS) continue;
        if (token_of(pairs[k]) == tok) level = level_of(pairs[k]);
        else others[n++] = pairs[k];
    }
    uint32_t before = pairs_before(heads, i), room = pair_room(before + n);
    if (room > pair_room(before) && resize(block, sizeof **block * room)) return -1;
    for (uint32_t k = 0; k < n; k++) (*block)[before + k] = others[k];
    heads[i] = (uint8_t)(n << 5 | level);
    return 0;
}

/* Writes the distribution of a block's i-th token to pairs [PAIRS], this token first. Returns the number of pairs; 0 if
 * the distribution is unknown. */
static int recall(const uint8_t *heads, uint32_t *const *block, uint32_t i, int32_t tok, uint32_t *pairs) {
    uint8_t head = heads[i];
    uint32_t n = 0, own = head & 31, others = num_others(head);
    memset(pairs, 0xFF, sizeof *pairs * PAIRS);        /* NO_PAIR */
    if (head == UNKNOWN) return 0;
    if (own != UNLISTED) pairs[n++] = (uint32_t)tok << 5 | own;
    if (!others) return (int)n;
    const uint32_t *from = (*block) + pairs_before(heads, i);
    for (uint32_t k = 0; k < PAIRS; k++) if (k < others) pairs[n++] = from[k];   /* faster than a call of memcpy */
    return (int)n;
}
