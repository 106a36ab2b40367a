"""Many threads use one drafter: readers at the same time, and a writer among them. Two drafters do not interfere."""

import gc
import threading

import numpy as np

from das.drafter import Draft, HistoryDrafter
from tests.drafter.test_reference import drive


def test_threads_draft_side_by_side() -> None:
    """Four threads that draft at the same time get the drafts that one thread gets."""
    rng = np.random.default_rng(3)
    text = rng.integers(0, 50, 3000)
    drafter = HistoryDrafter(min_prob=0.005)
    names = [f"{i}" for i in range(32)]
    for i, name in enumerate(names):
        drafter.begin(name, "p", [])
        drafter.observe(name, text[50 * i : 50 * i + 300])
    expected = drafter.propose(names, [16] * 32)
    answers: list[list[Draft]] = [[] for _ in range(4)]

    def read(thread: int) -> None:
        for _ in range(50):
            answers[thread] = drafter.propose(names[thread::4], [16] * 8)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(len(d.tokens) for d in expected) > 100
    for thread, answer in enumerate(answers):
        assert answer == expected[thread::4]


def test_one_writer_and_many_readers() -> None:
    """Threads that draft while another one writes get complete drafts, and no token is lost."""
    drafter = HistoryDrafter()
    for i in range(4):
        drafter.begin(f"{i}", "p", [1, 2, 3] * 20)
    writing = True
    answers: list[Draft] = []

    def read(request: str) -> None:
        while writing:
            answers.extend(drafter.propose([request], [8]))

    threads = [threading.Thread(target=read, args=(f"{i}",)) for i in range(3)]
    for t in threads:
        t.start()
    for i in range(300):
        drafter.observe("3", [1, 2, 3])
        drafter.begin("x", "p", [])
        drafter.observe("x", [i, i + 1])
        drafter.end("x")
    writing = False
    for t in threads:
        t.join()
    assert answers
    assert all(len(a.tokens) == len(a.probs) for a in answers)
    assert (drafter.live_tokens, drafter.history_tokens) == (900, 600)


def test_drafters_are_independent_across_threads() -> None:
    """Native calls release the GIL, and two drafters in two threads do not disturb each other."""
    results: list[int] = []
    options = {"window": 2, "min_prob": 0.1, "max_candidates": 8, "cross_problem_tokens": 300}

    def work(seed: int) -> None:
        results.append(drive(seed, 40, 8, **options))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 2
    gc.collect()
