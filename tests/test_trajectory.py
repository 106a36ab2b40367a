"""Trajectories and the sliding window of them."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from das.trajectory import Trajectory, Window

trajectories = st.builds(
    Trajectory,
    tokens=st.lists(st.integers(0, 2**31 - 1), max_size=5),
    problem=st.text(max_size=4),
    step=st.integers(-3, 6),
    reward=st.none() | st.floats(-2, 2),
    finish_reason=st.sampled_from([None, "", "stop", "length"]),
)


def test_tokens_become_read_only_int32() -> None:
    tokens = np.array([1, 2], np.int32)
    t = Trajectory(tokens, "p", 0)
    assert t.tokens.dtype == np.int32
    assert len(t) == 2
    with pytest.raises(ValueError, match="read-only"):
        t.tokens[0] = 5
    tokens[0] = 9  # the caller's array stays the caller's
    assert t.tokens.tolist() == [1, 2]


@pytest.mark.parametrize("bad", [[-1], [2**31], [0.5], [[1]], ["a"]])
def test_bad_tokens(bad: list) -> None:
    with pytest.raises(ValueError, match="token ids"):
        Trajectory(bad, "p", 0)  # type: ignore[arg-type]


def test_equality() -> None:
    a = Trajectory([1, 2], "p", 0, 1.0, "stop")  # type: ignore[arg-type]
    assert a == Trajectory(np.array([1, 2]), "p", 0, 1.0, "stop")
    assert a != Trajectory(np.array([1, 3]), "p", 0, 1.0, "stop")
    assert a != Trajectory(a.tokens, "p", 0, None, "stop")
    assert len({a, Trajectory(a.tokens, "p", 0, 1.0, "stop")}) == 1


@settings(max_examples=60)
@given(
    size=st.integers(0, 4),
    items=st.lists(trajectories, max_size=12),
    advances=st.lists(st.integers(0, 3), max_size=4),
)
def test_window_holds_what_a_filter_would(tmp_path_factory, size: int, items: list, advances: list) -> None:
    window, model = Window(size, history_tick=6), [t for t in items if t.step > 6 - size]
    for t in items:
        window.add(t)
    for ticks in advances:
        inside = [t for t in model if t.step > window.history_tick + ticks - size]
        assert window.advance(window.history_tick + ticks) == len(model) - len(inside)
        model = inside
    assert sorted(map(hash, window)) == sorted(map(hash, model))
    assert len(window) == len(model)
    assert window.tokens == sum(len(t) for t in model)
    for problem in {t.problem for t in items}:
        assert window.of(problem) == [t for t in model if t.problem == problem]
    path = tmp_path_factory.mktemp("window") / "window.npz"
    window.save(path)
    loaded = Window.load(path)
    assert list(loaded) == list(window)
    assert (loaded.size, loaded.history_tick) == (window.size, window.history_tick)
    assert loaded.problems == window.problems


def test_bad_use() -> None:
    with pytest.raises(ValueError, match="window must be >= 0"):
        Window(-1)
    window = Window(2, history_tick=3)
    with pytest.raises(ValueError, match="ahead of the history tick"):
        window.add(Trajectory(np.array([1]), "p", 4))
    with pytest.raises(ValueError, match="cannot go back"):
        window.advance(2)


def test_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "window.npz"
    Window(2).save(path)
    before = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        Window(3).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["window.npz"]


def test_load_refuses_other_files(tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, kind=np.array("something"))
    with pytest.raises(ValueError, match="does not hold a window"):
        Window.load(other)
    other.write_bytes(b"not a zip")
    with pytest.raises(ValueError, match="not a readable"):
        Window.load(other)
