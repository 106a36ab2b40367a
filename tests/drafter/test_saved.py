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
    "clocks ahead": lambda a: {"clocks": a["clocks"] + 250},
    "too few clocks": lambda a: {"clocks": a["clocks"][:-1]},
    "clocks with fractions": lambda a: {"clocks": a["clocks"] + 0.5},
    "a negative clock": lambda a: {"clock": np.array(-1), "clocks": a["clocks"] - 9},
    "a huge clock": lambda a: {"clock": np.array(2**63 - 1)},
    "negative lengths": lambda a: {"lengths": -a["lengths"]},
    "lengths that are too long": lambda a: {"lengths": a["lengths"] + 1},
    "huge contexts": lambda a: {"contexts": a["contexts"] + 2**62},
    "a token of 2**31": lambda a: {"tokens": a["tokens"].astype(np.int64) + 2**31},
    "a negative token": lambda a: {"tokens": a["tokens"] - 5},
    "too few weights": lambda a: {"weights": a["weights"][:-1]},
    "a weight that is NaN": with_weight(40, np.nan),
    "a negative weight": with_weight(3, -1.0),
    "a mixing weight that is NaN": with_weight(-3, np.nan),
    "too few problems": lambda a: {"problems": pack_strings(["p"])},
    "problems without an end": lambda a: {"problems": a["problems"][:-1]},
    "problems in brackets without end": lambda a: {"problems": np.full(10**6, ord("["), np.uint8)},
    "bytes that are no text": lambda a: {"problems": np.full(9, 255, np.uint8)},
    "tokens and lengths swapped": lambda a: {"tokens": a["lengths"], "lengths": a["tokens"]},
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


@pytest.mark.parametrize("name", ["weights", "clock", "tokens", "lengths", "contexts", "clocks", "problems"])
def test_a_file_without_one_of_its_arrays_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "history.npz"
    arrays = saved(path)
    del arrays[name]
    np.savez(path, **arrays)  # type: ignore[arg-type]
    assert_refused(path)
    path.write_bytes(b"PK\x03\x04")  # something else
    assert_refused(path)


def test_the_byte_order_of_another_machine_is_understood(tmp_path: Path) -> None:
    path = tmp_path / "history.npz"
    arrays = saved(path)
    swapped = {name: a.astype(a.dtype.newbyteorder("S")) for name, a in arrays.items()}
    assert swapped["tokens"].dtype.str == ">i4"
    np.savez(tmp_path / "swapped.npz", **swapped)  # type: ignore[arg-type]
    texts = []
    for name in ("history.npz", "swapped.npz"):
        drafter = HistoryDrafter()
        drafter.load(tmp_path / name)
        drafter.save(tmp_path / "again.npz")
        with np.load(tmp_path / "again.npz") as file:
            texts.append({key: value.tolist() for key, value in file.items()})
    assert texts[0] == texts[1] == {key: value.tolist() for key, value in arrays.items()}


def test_ticks_before_zero_come_back(tmp_path: Path) -> None:
    """A warm start counts the texts of an earlier run at ticks up to 0; a save of it must load."""
    path = tmp_path / "history.npz"
    saved(path)
    warm = HistoryDrafter(warm=path)
    warm.save(path)
    again = HistoryDrafter()
    again.load(path)
    assert again.history_tokens == warm.history_tokens == 300


def test_weights_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.npz"
    arrays = saved(path)
    np.savez(path, **{**arrays, "weights": np.append(arrays["weights"], np.ones(384))})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="another version of the drafter"):
        read_history(path)
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


def test_texts_of_other_engines_join_as_if_they_were_made_here(tmp_path: Path) -> None:
    """A drafter that is given texts one by one drafts what one drafts that loaded them, also amid requests."""
    saved(tmp_path / "history.npz")
    texts = read_history(tmp_path / "history.npz").texts
    loaded, given = HistoryDrafter(window=4), HistoryDrafter(window=4)
    loaded.load(tmp_path / "history.npz")
    given.move_window(5)
    given.begin("live", "p", [1, 2, 3])
    for text in texts:
        given.add_history([text])
    assert given.history_tokens == loaded.history_tokens == 200  # those of tick 1 are outside the window
    for drafter in (loaded, given):
        if drafter is loaded:
            drafter.begin("live", "p", [1, 2, 3])
        drafter.observe("live", texts[2].tokens[3:23])
    drafts = [drafter.propose(["live"], [8]) for drafter in (loaded, given)]
    assert drafts[0][0].tokens == drafts[1][0].tokens == texts[2].tokens[23:31].tolist()
    with pytest.raises(ValueError, match="a text of tick 1 cannot join a history at tick 0"):
        HistoryDrafter().add_history(texts)
