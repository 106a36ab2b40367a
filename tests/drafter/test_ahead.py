"""The drafter's thread: it takes in a pass's tokens and drafts as calls do, once the tokens are there, and it ends."""

import gc
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from das.drafter import HistoryDrafter
from das.drafter.distributions import LEVELS_PER_NAT, NO_PAIR, PAIRS
from das.drafter.thread import Arriving, Late

LONGEST, STOP = 8, 7


def pass_of(rng: np.random.Generator, texts: list[list[int]], batch: list[int], width: int) -> np.ndarray:
    """The tokens of a pass as an engine has them: row batch[i] has those of texts[i]; other rows are of others."""
    tokens = rng.integers(0, 9, (max(batch) + 3, 2 + width))
    tokens[:, 0], tokens[:, 1] = 1, rng.integers(0, width, len(tokens))
    for text, row in zip(texts, batch, strict=True):
        new = [text.pop(0) for _ in range(min(len(text), int(rng.integers(1, width + 1))))]
        tokens[row, : 2 + len(new)] = [len(new), max(len(new) - 1, tokens[row, 1]), *new]
    return tokens


def pairs_of(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Distributions of two tokens each."""
    pairs = np.full((rows, PAIRS), NO_PAIR, np.uint32)
    pairs[:, :2] = rng.integers(0, 9, (rows, 2)) << 5 | rng.integers(1, 3 * LEVELS_PER_NAT, (rows, 2))
    return pairs


def cut(row: np.ndarray) -> list[int]:
    """A row's tokens up to the first stop token."""
    new = row[2 : 2 + row[0]].tolist()
    return new[: new.index(STOP) + 1] if STOP in new else new


@pytest.mark.parametrize("remember", ["tokens", "distributions"])
def test_the_thread_drafts_and_learns_as_calls_do(remember: str) -> None:
    rng = np.random.default_rng(0)
    by_call, by_thread = (HistoryDrafter(remember=remember, min_prob=0.0, cross_problem_tokens=500) for _ in range(2))
    arrived, drafted, width = np.zeros(1, np.int64), 0, 4
    number = 0
    for tick in (1, 2, 3):
        phrase = rng.integers(0, 9, 12).tolist()
        texts = [[t for _ in range(6) for t in (phrase if rng.random() < 0.7 else rng.integers(0, 9, 12).tolist())]
                 for _ in range(20)]  # fmt: skip
        names = [f"{tick}.{i}" for i in range(20)]
        for drafter in (by_call, by_thread):
            for i, name in enumerate(names):
                drafter.begin(name, f"p{i % 3}", [1, 2, 3], seed=i if i % 2 else None)
        left = [len(text) - 1 for text in texts]
        while any(texts):
            number += 1
            going = [i for i, text in enumerate(texts) if text]
            batch = (rng.permutation(len(going) + 4)[: len(going)]).tolist()
            tokens = pass_of(rng, [texts[i] for i in going], batch, width)
            first = np.cumsum(tokens[:, 1] + 1) - (tokens[:, 1] + 1)
            remembered = None
            if by_call.remembers:
                remembered = pairs_of(rng, int((tokens[:, 1] + 1).sum())), tokens[:, 1]
            requests = [(names[i], row, left[i], 5 + i % 4, {STOP}) for i, row in zip(going, batch, strict=True)]
            shape = len(tokens) + 2, LONGEST
            late = Late(np.full(shape, -1), np.ones(shape), np.full(len(tokens) + 2, 9), np.zeros(1, np.int64))
            floors = [0.05] * len(going)
            by_thread.draft_ahead(
                requests,
                LONGEST,
                Arriving(tokens, remembered, number, arrived.ctypes.data, late),
                floors,
            )
            threading.Timer(float(rng.random()) * 1e-3, arrived.__setitem__, (0, number)).start()
            live, new = [names[i] for i in going], [cut(tokens[row]) for row in batch]
            pairs = None
            if remembered is not None:
                cells = [first[row] + np.arange(len(own)) for row, own in zip(batch, new, strict=True)]
                pairs = remembered[0][np.concatenate(cells)]
            limits = []
            for i, own in zip(going, new, strict=True):
                left[i] -= len(own)
                limits.append(max(0, min(LONGEST, 5 + i % 4, left[i])))
            for drafter in (by_call, by_thread):
                drafter.observe_batch(live, new, pairs)
            expected, found = (drafter.propose_batch(live, limits, floors) for drafter in (by_call, by_thread))
            assert [found[i] for i in range(len(live))] == [expected[i] for i in range(len(live))]
            assert late.marks[0] == number
            called = Late(np.full(shape, -1), np.ones(shape), np.full(shape[0], 9), np.zeros(1, np.int64))
            called.write(number, batch, expected)  # as from Python
            assert np.array_equal(late.counts[: len(tokens)], called.counts[: len(tokens)]), "others draft nothing"
            assert np.array_equal(late.tokens[batch], called.tokens[batch])
            assert np.array_equal(late.probs[batch], called.probs[batch])
            drafted += int(expected.counts.sum())
            for i in going:
                if not texts[i]:
                    for drafter in (by_call, by_thread):
                        drafter.end(names[i], keep=i % 3 > 0)
        for drafter in (by_call, by_thread):
            drafter.move_window(tick)
    assert drafted > 1000
    assert np.array_equal(by_call.weights(), by_thread.weights())
    assert by_call.history_tokens == by_thread.history_tokens > 0


def test_drafts_that_nobody_asked_for_are_dropped_and_other_tokens_are_a_fault() -> None:
    drafter = HistoryDrafter(min_prob=0.0)
    for name in "ab":
        drafter.begin(name, "p", [1, 2, 3] * 4)
    arriving = Arriving(np.array([[1, 0, 1], [1, 0, 1]]))
    requests = [("a", 0, 50, 4, ()), ("b", 1, 50, 4, ())]
    drafter.draft_ahead(requests, 4, arriving)
    drafter.end("a")  # one request ended while the pass ran
    drafter.observe_batch(["b"], [[1]])
    drafter.observe_batch(["b"], [[2, 3]])
    (draft,) = drafter.propose(["b"], [4])
    assert draft.tokens == [1, 2, 3, 1], "not the drafts of the pass before"
    drafter.draft_ahead([("b", 0, 50, 4, ())], 4, arriving)
    with pytest.raises(ValueError, match="'b' emitted 2 tokens"):
        drafter.observe_batch(["b"], [[1, 2]])
    drafter.draft_ahead([("b", 0, 50, 4, ())], 4, arriving)
    drafter.end("b")
    drafter.begin("c", "p", [])
    drafter.observe_batch(["c"], [[1, 2, 3]])  # all requests of the thread's pass are over
    drafter.draft_ahead([("c", 0, 50, 4, ())], 4, arriving)
    drafter.end("c")
    drafter.begin("c", "p", [])  # another request of that name
    drafter.observe_batch(["c"], [[1, 2, 3]])


def test_the_thread_ends_with_its_drafter_although_no_token_comes() -> None:
    before = len(list(Path("/proc/self/task").iterdir()))
    drafter = HistoryDrafter()
    drafter.begin("a", "p", [1, 2, 3])
    never = np.zeros(1, np.int64)
    drafter.draft_ahead([("a", 0, 50, 4, ())], 4, Arriving(np.array([[1, 0, 1]]), None, 1, never.ctypes.data))
    time.sleep(0.05)  # it polls by now
    assert len(list(Path("/proc/self/task").iterdir())) == before + 1
    del drafter
    gc.collect()
    assert len(list(Path("/proc/self/task").iterdir())) == before
