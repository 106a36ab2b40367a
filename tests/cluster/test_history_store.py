"""The store of histories: against a slow count of who has what, over random steps; saved and restored."""

from pathlib import Path

import numpy as np
import pytest

from das.cluster.history_store import HistoryStore
from das.drafter.distributions import Distributions
from das.drafter.saved import SavedText, read_history


def trajectory(problem: str, tick: int, number: int) -> SavedText:
    return SavedText(problem, tick, 1, np.array([7, number, number + 1], np.int32))


def numbers(trajectories: list[SavedText]) -> list[int]:
    return [int(each.tokens[1]) for each in trajectories]


@pytest.mark.parametrize("seed", range(8))
def test_an_engine_gets_what_it_lacks_once(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    window = int(random.integers(1, 4))
    store, tick = HistoryStore(), 0
    kept: list[tuple[int, str, int]] = []  # number, problem, tick
    has: dict[int, set[int]] = {engine: set() for engine in range(4)}
    for number in range(200):
        action = random.choice(["add", "add", "add", "give", "give", "step", "forget", "save"])
        engine = int(random.integers(4))
        if action == "add":
            problem = str(random.integers(3))
            store.add(trajectory(problem, tick, number), [engine])
            kept.append((number, problem, tick))
            has[engine].add(number)
        elif action == "give":
            wanted = [str(p) for p in random.integers(3, size=2)]
            lacking = [
                n for problem in dict.fromkeys(wanted) for n, its, _ in kept if its == problem and n not in has[engine]
            ]
            assert numbers(store.missing(engine, wanted)) == lacking
            has[engine] |= set(lacking)
        elif action == "step":
            tick += int(random.integers(0, 3))
            store.end_rollout(tick, tick - window + 1)
        elif action == "forget":
            store.forget(engine)
            has[engine] = set()
        else:  # the trainer restarts
            store.saved().write(tmp_path / "store.npz")
            known, store = store.known(), HistoryStore()
            store.restore(read_history(tmp_path / "store.npz"), known)
        kept = [entry for entry in kept if entry[2] > tick - window]
        assert len(store.saved().texts) == len(kept)
        assert store.bytes == 12 * len(kept)


def test_restored_trajectories_are_equal(tmp_path: Path) -> None:
    store = HistoryStore()
    store.end_rollout(5, 2)
    remembered = Distributions(np.array([1 << 5, 30, 31, 2, 0, 0, 1 << 5], np.uint8), np.array([77, 99], np.uint32))
    made = [
        SavedText("ß", 5, 2, np.arange(9, dtype=np.int32), remembered=remembered),
        SavedText("b", 4, 0, np.arange(2, dtype=np.int32)),
    ]
    for each in made:
        store.add(each, [])
    store.saved().write(tmp_path / "store.npz")
    other = HistoryStore()
    other.restore(read_history(tmp_path / "store.npz"), [[], []])
    assert other.history_tick == 5
    for before, after in zip(made, other.missing(0, ["ß", "b"]), strict=True):
        assert (before.problem, before.history_tick, before.context) == (
            after.problem,
            after.history_tick,
            after.context,
        )
        assert before.tokens.dtype == after.tokens.dtype
        assert before.tokens.tobytes() == after.tokens.tobytes()
        kept = before.remembered or Distributions.unknown(2)
        assert after.remembered is not None
        assert after.remembered.heads.tobytes() == kept.heads.tobytes()
        assert after.remembered.others.tobytes() == kept.others.tobytes()
    assert other.bytes == 9 * 4 + 7 + 2 * 4 + 2 * 4 + 2
    other.end_rollout(5, 5)
    assert len(other.saved().texts) == 1


def test_refused_in_one_line() -> None:
    store = HistoryStore()
    store.end_rollout(3, 2)
    with pytest.raises(ValueError, match="tick 4 cannot come at tick 3"):
        store.add(trajectory("a", 4, 0), [0])
    with pytest.raises(ValueError, match="cannot go back"):
        store.end_rollout(2, 1)
