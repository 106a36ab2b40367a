"""The store of histories: against a slow count of who has what, over random steps; saved and restored."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from das.cluster.history_store import HistoryStore
from das.drafter.distributions import Distributions
from das.drafter.saved import SavedText, read_history


def trajectory(problem: str, tick: int, number: int) -> SavedText:
    remembered = Distributions(np.array([1 << 5, 30], np.uint8), np.array([number], np.uint32))
    return SavedText(problem, tick, 1, np.array([7, number, number + 1], np.int32), remembered=remembered)


def plain(text: SavedText) -> list[Any]:
    assert text.remembered is not None
    own = text.tokens.dtype, text.tokens.tolist(), text.remembered.text()
    return [text.problem, text.history_tick, text.context, *own]


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_gets_what_it_lacks_once(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    window = int(random.integers(1, 4))
    store, tick = HistoryStore(), 0
    kept: list[SavedText] = []
    has: dict[int, set[int]] = {engine: set() for engine in range(4)}
    for number in range(200):
        action = random.choice(["add", "add", "add", "give", "give", "step", "forget", "save"])
        engine = int(random.integers(4))
        if action == "add":
            kept.append(trajectory("aßc"[random.integers(3)], tick, number))
            store.add(kept[-1], [engine])
            has[engine].add(number)
        elif action == "give":
            wanted = ["aßc"[p] for p in random.integers(3, size=2)]
            known = [each for problem in dict.fromkeys(wanted) for each in kept if each.problem == problem]
            lacking = [each for each in known if int(each.tokens[1]) not in has[engine]]
            assert [*map(plain, store.missing(engine, wanted))] == [*map(plain, lacking)]
            has[engine] |= {int(each.tokens[1]) for each in lacking}
        elif action == "step":
            tick += int(random.integers(0, 3))
            store.end_rollout(tick, tick - window + 1)
        elif action == "forget":
            store.forget(engine)
            has[engine] = set()
        else:  # the trainer restarts
            store.saved().write(tmp_path / "store.npz")
            who_knows, store = store.known(), HistoryStore()
            store.restore(read_history(tmp_path / "store.npz"), who_knows)
            assert store.history_tick == tick
        kept = [each for each in kept if each.history_tick > tick - window]
        assert len(store.saved().texts) == len(kept)
        assert store.bytes == (12 + 6) * len(kept)


def test_refused_in_one_line() -> None:
    store = HistoryStore()
    store.end_rollout(3, 2)
    with pytest.raises(ValueError, match="tick 4 cannot come at tick 3"):
        store.add(trajectory("a", 4, 0), [0])
    with pytest.raises(ValueError, match="cannot go back"):
        store.end_rollout(2, 1)
