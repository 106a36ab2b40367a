"""The history drafter starts warm, learns, and gives its memory back."""

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from das.drafter import HistoryDrafter
from das.drafter.options import SHARED_TEXTS
from das.drafter.saved import read_history

TEXT = list(range(100, 140))


def drafts_text(drafter: HistoryDrafter, prompt: list[int] | None = None, problem: str = "p") -> bool:
    """Whether a new request of a problem that has emitted the start of TEXT drafts its continuation."""
    drafter.begin("probe", problem, prompt or [])
    drafter.observe("probe", TEXT[:6])
    (draft,) = drafter.propose(["probe"], [1])
    drafter.end("probe", keep=False)
    return draft.tokens == [TEXT[6]]


def finish(drafter: HistoryDrafter, keep: bool = True) -> None:
    drafter.begin("done", "p", [])
    drafter.observe("done", TEXT)
    drafter.end("done", keep=keep)


def test_warm_history(tmp_path: Path) -> None:
    past = HistoryDrafter()
    finish(past)
    past.move_window(7)
    past.save(tmp_path / "history.npz")
    warm = HistoryDrafter(warm=tmp_path / "history.npz", window=8)
    assert warm.history_tokens == len(TEXT)
    assert drafts_text(warm)
    assert drafts_text(warm, problem="q")
    warm.move_window(0)  # ticks of a new run start at 0; the saved tick 7 counts as 0
    assert warm.history_tokens == len(TEXT)
    warm.save(tmp_path / "warm.npz")
    assert HistoryDrafter(warm=tmp_path / "warm.npz").history_tokens == len(TEXT), "a text of a tick before 0"
    warm.move_window(1)
    assert warm.history_tokens == 0
    (text,) = read_history(tmp_path / "history.npz").texts
    with pytest.raises(ValueError, match="a text of tick 2 cannot join a history at tick 1"):
        warm.add_history([replace(text, history_tick=2)])


def test_probabilities_are_learned_and_saved(tmp_path: Path) -> None:
    """One token follows the context 7 times of 10: its probability ends near 0.7, and a loaded drafter knows that."""
    rng = np.random.default_rng(1)
    drafter = HistoryDrafter(min_prob=0.0)
    drafter.begin("a", "p", [])
    drafter.observe("a", [1])
    probs = []
    for _ in range(6000):
        (draft,) = drafter.propose(["a"], [1])
        probs += draft.probs
        drafter.observe("a", [2 if rng.random() < 0.7 else int(rng.integers(100, 10**9)), 1])
    assert np.mean(probs[-500:]) == pytest.approx(0.7, abs=0.05)
    drafter.save(tmp_path / "history.npz")
    loaded = HistoryDrafter(warm=tmp_path / "history.npz")
    assert np.array_equal(loaded.weights(), drafter.weights())
    assert not np.array_equal(loaded.weights(), HistoryDrafter().weights())


def test_probabilities_at_late_positions_are_corrected() -> None:
    """Drafts follow a text whose repetitions end after 12 tokens. The estimates behind that must come down."""
    rng = np.random.default_rng(0)
    drafter = HistoryDrafter(min_prob=0.0, cross_problem_tokens=0)
    drafter.begin("r", "p", [])
    phrase = list(range(100, 140))
    sums = np.zeros((2, 2))  # [first, second half]: sum of estimates at positions 12-15, accepted there
    for i in range(1500):
        drafter.observe("r", phrase[:4])
        (draft,) = drafter.propose(["r"], [16])
        coming = phrase[4:16] + (phrase[16:24] if rng.random() < 0.5 else rng.integers(1000, 2000, 8).tolist())
        accepted = next((j for j, token in enumerate(draft.tokens) if token != coming[j]), len(draft.tokens))
        for j in range(12, min(accepted + 1, len(draft.tokens))):
            sums[i * 2 // 1500] += draft.probs[j], j < accepted
        drafter.observe("r", coming)
    assert abs(sums[1, 0] / sums[1, 1] - 1) < 0.1


class Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def allocated() -> int:
    """Bytes that this process got by malloc, in pieces small and large."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = Mallinfo
    found = mallinfo()
    return int(found.hblkhd + found.uordblks)


def test_memory_is_returned_when_history_leaves() -> None:
    drafter = HistoryDrafter(window=1)
    drafter.begin("r", "p", [])
    drafter.end("r")
    empty = allocated()
    for tick in range(5):
        drafter.move_window(tick)
        for i in range(8):
            drafter.begin(f"{i}", "p", [])
            drafter.observe(f"{i}", np.random.default_rng(tick * 8 + i).integers(0, 1000, 2000))
        assert 20 * 8 * 2000 < allocated() - empty < 200 * 8 * 2000
        for i in range(8):
            drafter.end(f"{i}")
    drafter.move_window(9)
    assert allocated() < empty + 100_000


def test_other_problems_see_the_newest_texts_of_a_problem() -> None:
    drafter = HistoryDrafter(window=4)
    texts = [list(range(1000 * number, 1000 * number + 40)) for number in range(1, 2 * SHARED_TEXTS + 1)]
    for number, text in enumerate(texts):
        drafter.move_window(number // SHARED_TEXTS)
        drafter.begin("done", "p", [])
        drafter.observe("done", text)
        drafter.end("done")
    seen = []
    for text in texts:
        drafter.begin("other", "q", [])
        drafter.observe("other", text[:6])
        (draft,) = drafter.propose(["other"], [1])
        drafter.end("other", keep=False)
        seen.append(draft.tokens == [text[6]])
    assert seen == [False] * SHARED_TEXTS + [True] * SHARED_TEXTS
