"""Comparisons over seeds are summed up by arm: mean and range of what a reader compares."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis import seeds


def comparison(folder: Path, das_s: float, differs: bool = False, arms: tuple[str, ...] = ("none", "das")) -> None:
    def arm(rollout_s: float, tokens_per_pass: float) -> dict[str, Any]:
        return {"rollout_s": {"mean": rollout_s}, "tokens_per_pass": {"overall": tokens_per_pass}}

    ratio = {"rollout_s": {"overall": das_s / 2, "from_second_epoch": das_s / 4}, "step_s": {"overall": 0.75}}
    folder.mkdir(parents=True)
    result = {
        "arms": {name: arm(das_s, 4.0) if name == "das" else arm(2.0, 1.0) for name in arms},
        "ratio_to_none": {"das": ratio},
        "identical": {"das": {"completions": not differs, "first_difference": 3 if differs else None}},
    }
    (folder / "result.json").write_text(json.dumps(result))


def test_each_cell_has_the_mean_and_the_range_over_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, seconds in enumerate((0.8, 1.0, 1.2)):
        comparison(tmp_path / str(seed), seconds)
    seeds.main([str(tmp_path), "--json", str(tmp_path / "kept.json")])
    printed = capsys.readouterr().out
    assert "0.50 (0.40 to 0.60)" in printed
    assert "0.25 (0.20 to 0.30)" in printed
    assert printed.endswith("identical: yes  (3 comparisons)\n")
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["seeds"] == 3
    assert kept["arms"]["das"]["of_none"]["std"] == pytest.approx(0.1)
    assert kept["arms"]["none"]["whole_step"]["mean"] == 1
    assert "of_stock" not in kept["arms"]["das"]


def test_a_seed_that_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison(tmp_path / "0", 1.0)
    comparison(tmp_path / "1", 1.0, differs=True)
    seeds.main([str(tmp_path)])
    assert "identical: NO: das: completions" in capsys.readouterr().out


def test_what_cannot_be_summed_up_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no finished comparison"):
        seeds.main([str(tmp_path)])
    comparison(tmp_path / "0", 1.0)
    comparison(tmp_path / "1", 1.0, arms=("none", "stock", "das"))
    with pytest.raises(SystemExit, match="different arms"):
        seeds.main([str(tmp_path)])
