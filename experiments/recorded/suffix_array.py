"""A drafter with a static suffix array. Fig 5 of the DAS paper compares its suffix tree with such an array."""

import bisect
import time

import numpy as np

from das.drafter import HistoryDrafter
from experiments.recorded.drafter_replay import made_up_problems


def against_array(tokens: int) -> dict[str, float]:
    """Measure a query and the insertion of 100 tokens, in our drafter's index and in a suffix array (Fig 5 of the
    paper). Returns the times in milliseconds, and the size of the corpus.

    tokens: size of the corpus. The array cannot grow, so an insertion sorts it anew.
    """
    (_, texts), *_ = made_up_problems(1, max(2, tokens // 1000), min(1000, tokens // 2), 1)
    corpus = np.concatenate(texts)
    drafter = HistoryDrafter(cross_problem_tokens=0, min_prob=0.005, remember="tokens")  # as in earlier records
    drafter.begin("past", "p", [])
    drafter.observe("past", corpus)
    drafter.begin("live", "p", [])
    start = time.perf_counter()
    for i in range(20):
        drafter.observe("live", texts[0][5 * i : 5 * i + 5])
    insert = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(100):
        drafter.propose(["live"], [16])
    query = (time.perf_counter() - start) / 100
    start = time.perf_counter()
    order = suffix_array(corpus)
    sort = time.perf_counter() - start
    start = time.perf_counter()
    for i in range(100):
        array_draft(corpus, order, texts[0][: 100 + i], 16)
    array_query = (time.perf_counter() - start) / 100
    return {
        "tokens": len(corpus),
        "query_ms": query * 1e3,
        "insert_100_ms": insert * 1e3,
        "array_query_ms": array_query * 1e3,
        "array_sort_ms": sort * 1e3,
    }


def array_draft(text: np.ndarray, order: np.ndarray, context: np.ndarray, tokens: int) -> np.ndarray:
    """Make a draft: find the longest suffix of the context that occurs in the text, and append the token that most
    often follows it there, again and again.

    order: the suffix array of `text`. tokens: the most tokens of a draft.
    """
    longest, shortest = 24, 0
    while shortest < longest:  # bisection works because every suffix of a match is a match too
        middle = (shortest + longest + 1) // 2
        first, last = matches(text, order, context[len(context) - middle :])
        shortest, longest = (middle, longest) if last > first else (shortest, middle - 1)
    pattern = context[len(context) - shortest :]
    draft: list[int] = []
    for _ in range(tokens):
        first, last = matches(text, order, np.append(pattern, draft).astype(text.dtype))
        after = order[first:last] + len(pattern) + len(draft)
        after = text[after[after < len(text)]]
        if not len(after):
            break
        values, counts = np.unique(after, return_counts=True)
        draft.append(int(values[counts.argmax()]))
    return np.array(draft, text.dtype)


def matches(text: np.ndarray, order: np.ndarray, pattern: np.ndarray) -> tuple[int, int]:
    """Return the range (first, last + 1) of the suffix array in which suffixes begin with the pattern."""
    tokens, length = pattern.tolist(), len(pattern)
    first = bisect.bisect_left(order, tokens, key=lambda at: text[at : at + length].tolist())
    last = bisect.bisect_right(order, tokens, lo=first, key=lambda at: text[at : at + length].tolist())
    return first, last


def suffix_array(text: np.ndarray) -> np.ndarray:
    """Return the suffix array of `text`: the positions at which its suffixes begin, sorted by suffix. Uses prefix
    doubling."""
    rank = np.unique(text, return_inverse=True)[1].astype(np.int64)
    n, k = len(text), 1
    while True:
        after = np.full(n, -1, np.int64)
        after[:-k] = rank[k:]
        order = np.lexsort((after, rank))
        new_rank = np.zeros(n, np.int64)
        new_rank[order[1:]] = np.cumsum((np.diff(rank[order]) != 0) | (np.diff(after[order]) != 0))
        rank, k = new_rank, 2 * k
        if rank.max() == n - 1 or k >= n:
            return order
