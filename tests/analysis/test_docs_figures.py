"""The figures of docs/ are drawn from kept measurements; each arm has its colour and a name that a reader knows."""

from pathlib import Path

from analysis import docs_figures
from analysis.figures import COLOURS, OTHER_COLOURS, colours_of, smoothed


def test_the_kept_measurements_draw_every_figure(tmp_path: Path) -> None:
    docs_figures.main(tmp_path)
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in docs_figures.DOCS.rglob("*.png")}


def test_one_palette_for_arms_and_other_names() -> None:
    colours = colours_of(["none", "das", "window_1", "ngram", "x", "y"])
    assert [colours[name] for name in ("none", "das", "ngram")] == [COLOURS[name] for name in ("none", "das", "ngram")]
    assert len(set(colours.values())) == 6
    assert set(colours.values()) <= {*COLOURS.values(), *OTHER_COLOURS}


def test_the_moving_mean_begins_with_what_there_is() -> None:
    assert smoothed([4.0, 2.0, 0.0, 2.0, 6.0]).tolist() == [4.0, 3.0, 2.0, 2.0, 2.5]
