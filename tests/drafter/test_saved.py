"""A damaged or inconsistent history file is refused in one line, and the drafter stays as it was."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from reference_recall import pairs_beside

from das.drafter import HistoryDrafter
from das.drafter.distributions import NO_PAIR, PAIRS, unknown
from das.drafter.saved import read_history
from das.general.arrays import pack_strings, save_arrays
from tests.drafter.fuzz import saved
from tests.made_noise import packed

Arrays = dict[str, np.ndarray]


def with_weight(at: int, value: float) -> Callable[[Arrays], Arrays]:
    def change(arrays: Arrays) -> Arrays:
        weights = arrays["weights"].copy()
        weights[at] = value
        return {"weights": weights}

    return change


INCONSISTENT: dict[str, Callable[[Arrays], Arrays]] = {
    "no lengths": lambda a: {"lengths": np.array(None)},
    "clocks with fractions": lambda a: {"clocks": a["clocks"] + 0.5},
    "a huge clock": lambda a: {"clock": np.array(2**63 - 1)},
    "clocks ahead": lambda a: {"clocks": a["clocks"] + 250},
    "too few clocks": lambda a: {"clocks": a["clocks"][:-1]},
    "negative lengths": lambda a: {"lengths": -a["lengths"]},
    "lengths that are too long": lambda a: {"lengths": a["lengths"] + 1},
    "a negative token": lambda a: {"tokens": a["tokens"] - 5},
    "weights of another version": lambda a: {"weights": np.append(a["weights"], np.ones(384))},
    "a weight that is NaN": with_weight(40, np.nan),
    "a mixing weight that is NaN": with_weight(-3, np.nan),
    "problems that are numbers": lambda a: {"problems": pack_strings([1] * 6)},  # type: ignore[list-item]
    "problems in brackets without end": lambda a: {"problems": np.full(10**6, ord("["), np.uint8)},
}


def assert_refused(path: Path) -> None:
    """Loading the file raises ValueError in one line with the file's name and changes nothing."""
    drafter = HistoryDrafter()
    drafter.begin("r", "p", [])
    drafter.observe("r", [1, 2, 3] * 20)
    drafter.end("r")
    drafter.move_window(3)
    weights = drafter.weights()
    with pytest.raises(ValueError, match=rf"^[^\n]*{path.name}: [^\n]+$"):
        drafter.load(path)
    assert (drafter.history_tick, drafter.history_tokens) == (3, 60)
    assert np.array_equal(drafter.weights(), weights)
    drafter.begin("r", "p", [])
    drafter.observe("r", [1, 2, 3])
    assert drafter.propose(["r"], [2])[0].tokens == [1, 2]


@pytest.mark.parametrize("what", INCONSISTENT)
def test_an_inconsistent_file_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "history.npz"
    arrays = saved(path)
    np.savez(path, **{**arrays, **INCONSISTENT[what](arrays)})  # type: ignore[arg-type]
    assert_refused(path)


def test_remembered_distributions_come_back(tmp_path: Path) -> None:
    """A drafter that loads them drafts what one drafts that was given them; one that remembers tokens ignores them."""
    path, rng = tmp_path / "history.npz", np.random.default_rng(0)
    tokens = rng.integers(0, 30, 200)
    remembered = unknown(200)
    remembered[:150] = packed(rng.integers(0, 30, (150, PAIRS)), np.sort(-4 * rng.random((150, PAIRS)))[:, ::-1])
    drafter = HistoryDrafter(remember="distributions")
    drafter.begin("r", "p", [1, 2, 3])
    drafter.observe("r", tokens, remembered)
    drafter.end("r")
    drafter.save(path)
    (text,) = read_history(path).texts
    assert text.remembered is not None
    own_rows = text.remembered.rows(tokens)
    for own, given, token in zip(own_rows.tolist(), remembered.tolist(), tokens.tolist(), strict=True):
        expected = [other << 5 | level for other, level in pairs_beside(token, given)]
        assert own == expected + [NO_PAIR] * (PAIRS - len(expected))
    drafts = []
    for warm in (HistoryDrafter(warm=path), HistoryDrafter(remember="tokens", warm=path)):
        warm.begin("live", "p", [1, 2, 3], 7)
        warm.observe("live", tokens[:40])
        drafts.append(warm.propose(["live"], [8])[0])
    given_again = HistoryDrafter(remember="distributions")
    given_again.add_history(read_history(path).texts)
    given_again.begin("live", "p", [1, 2, 3], 7)
    given_again.observe("live", tokens[:40])
    assert given_again.propose(["live"], [8])[0] == drafts[0] != drafts[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": np.ones(3, np.uint8)}, "it has 3 distributions for 200 tokens of responses"),
        ({"heads": np.full(200, 7 << 5, np.uint8)}, "its distributions do not add up to its 799 pairs"),
        ({"others": np.zeros(5, np.uint32)}, "its distributions do not add up to its 5 pairs"),
        ({"others": np.zeros((2, 2))}, "its others have a wrong type or shape"),
    ],
)
def test_damaged_distributions_are_refused(tmp_path: Path, change: Arrays, said: str) -> None:
    path = tmp_path / "history.npz"
    drafter = HistoryDrafter(remember="distributions")
    drafter.begin("r", "p", [1, 2, 3])
    drafter.observe("r", np.arange(200), packed(np.arange(800).reshape(200, 4), np.full((200, 4), -1.4)))
    drafter.end("r")
    drafter.save(path)
    save_arrays(path, {**np.load(path), **change})
    with pytest.raises(ValueError, match=said):
        HistoryDrafter(remember="distributions").load(path)
