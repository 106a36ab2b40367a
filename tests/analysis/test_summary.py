"""Comparisons over seeds: mean and range of what a reader compares. test_golden.py sums up trainings."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from analysis.summary import main


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
    main([str(tmp_path), "--json", str(tmp_path / "kept.json")])
    printed = capsys.readouterr().out
    assert "0.50 (0.40 to 0.60)" in printed
    assert "0.25 (0.20 to 0.30)" in printed
    assert printed.endswith("identical: yes  (3 comparisons)\n")
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert kept["das"]["of none"] == pytest.approx({"n": 3, "mean": 0.5, "std": 0.1, "min": 0.4, "max": 0.6})
    assert kept["none"]["step, of none"]["mean"] == 1
    assert "of stock" not in kept["das"]


def test_a_seed_that_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    comparison(tmp_path / "0", 1.0)
    comparison(tmp_path / "1", 1.0, differs=True)
    main([str(tmp_path)])
    assert "identical: NO: das: completions" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--by", "trainer.lag"], ["--by", "trainer.lags"], ["different"]])
def test_what_cannot_be_summed_up_is_one_line(words: list[str], tmp_path: Path) -> None:
    if words == ["--by", "trainer.lags"]:
        shutil.copytree(Path(__file__).parent / "golden" / "run", tmp_path / "run")
    if words == ["different"]:
        words = []
        comparison(tmp_path / "0", 1.0)
        comparison(tmp_path / "1", 1.0, arms=("none", "stock", "das"))
    with pytest.raises(SystemExit, match=r"^error: [^\n]*$"):
        main([str(tmp_path), *words])
