"""The timeline of all engines: what it reads from rows, and that it draws."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.timeline_figure import idle_share, live_by_engine, longest_rollout, timeline_figure

ROWS = [
    {"engine": 0, "time_s": 0.0, "live": 0, "event": "joined"},
    {"engine": 0, "time_s": 0.0, "live": 4, "event": ""},
    {"engine": 0, "time_s": 8.0, "live": 0, "event": ""},
    {"engine": 3, "time_s": 0.0, "live": 2, "event": "joined"},
    {"engine": 3, "time_s": 4.0, "live": 0, "event": "lost: killed"},
    {"engine": 7, "time_s": 6.0, "live": 0, "event": "joined"},
    {"engine": 7, "time_s": 7.0, "live": 1, "event": "draining"},
    {"engine": 7, "time_s": 10.0, "live": 0, "event": ""},
]


def test_live_requests_from_rows_in_any_order() -> None:
    live = live_by_engine(ROWS[:2] + ROWS[:1:-1], np.array([0.0, 5.0, 6.5, 9.0]))
    expected = [[4, 4, 4, 0], [2, np.nan, np.nan, np.nan], [np.nan, np.nan, 0, 1]]
    np.testing.assert_array_equal(live, expected)


def test_idle_share_counts_engines_while_they_take_part() -> None:
    # idle: 2 s of engine 0 and 1 s of engine 7; there: 10, 4 and 4 s
    assert idle_share(ROWS) == pytest.approx(3 / 18)


def test_the_longest_rollout_of_a_run_is_shown(tmp_path: Path) -> None:
    steps = [(1, 2.0), (2, 5.0), (2, 9.0), (3, 4.0)]
    rows = [{"step": step, "engine": 0, "time_s": time_s, "live": 0, "event": ""} for step, time_s in steps]
    (tmp_path / "engines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert longest_rollout(tmp_path) == rows[1:3]


def test_figures_of_few_and_many_engines(tmp_path: Path) -> None:
    timeline_figure(ROWS, tmp_path / "few.png")
    many = [row | {"engine": 10 * i + row["engine"]} for i in range(40) for row in ROWS]
    timeline_figure(many, tmp_path / "many.png")
    timeline_figure(ROWS[:1], tmp_path / "nothing.png")
    assert all((tmp_path / f"{name}.png").stat().st_size > 5000 for name in ("few", "many", "nothing"))
