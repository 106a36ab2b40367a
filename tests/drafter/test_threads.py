"""One drafter, many threads: readers side by side, a writer among them."""

import threading

import numpy as np

from das.drafter import Draft, HistoryDrafter


def test_threads_draft_side_by_side() -> None:
    """Requests drafted for in four threads at once get what they get one after the other."""
    rng = np.random.default_rng(3)
    text = rng.integers(0, 50, 3000)
    drafter = HistoryDrafter()
    names = [f"{i}" for i in range(32)]
    for i, name in enumerate(names):
        drafter.begin(name, "p", [])
        drafter.observe(name, text[50 * i : 50 * i + 300])
    alone = drafter.propose(names, [16] * 32)
    answers: list[list[Draft]] = [[] for _ in range(4)]

    def read(thread: int) -> None:
        for _ in range(50):
            answers[thread] = drafter.propose(names[thread::4], [16] * 8)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sum(len(d.tokens) for d in alone) > 100
    for thread, answer in enumerate(answers):
        assert answer == alone[thread::4]


def test_one_writer_and_many_readers() -> None:
    """Threads that draft while another one writes get whole answers; nothing is lost."""
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
