"""Runs over seeds are summed up by arm or by a setting: mean and range of what a reader compares."""

import json
from pathlib import Path
from typing import Any

import pytest
from steps_on_disk import json_lines

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


def training(folder: Path, lag: int, rewards: list[float]) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text(f"trainer: {{lag: {lag}}}\n")
    same = {"rollout_s": 1.5, "step_s": 2.0, "decode_steps": 90}
    rows = [{"step": step + 1, "epoch": 1 + step // 2, "reward": reward, **same} for step, reward in enumerate(rewards)]
    (folder / "metrics.jsonl").write_text(json_lines(rows))


def test_trainings_are_summed_up_by_a_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training(tmp_path / "0", 2, [0.0] * 6 + [0.5, 0.7])
    training(tmp_path / "1", 0, [1.0] * 4)
    training(tmp_path / "2", 2, [0.0] * 6 + [0.1, 0.3])
    main([str(tmp_path), "--by", "trainer.lag"])
    header, _, *lines = capsys.readouterr().out.splitlines()
    assert header.startswith("trainer.lag")
    assert [line.split() for line in lines] == [
        ["0", "1.500", "2.000", "90.000", "1.000"],
        ["2", "1.500", "2.000", "90.000", "0.400", "(0.200", "to", "0.600)"],
    ]
    assert (tmp_path / "rewards.png").stat().st_size > 0


@pytest.mark.parametrize("words", [[], ["--by", "trainer.lag"], ["--by", "trainer.lags"], ["different"]])
def test_what_cannot_be_summed_up_is_one_line(words: list[str], tmp_path: Path) -> None:
    if words == ["--by", "trainer.lags"]:
        training(tmp_path / "0", 0, [0.5])
    if words == ["different"]:
        words = []
        comparison(tmp_path / "0", 1.0)
        comparison(tmp_path / "1", 1.0, arms=("none", "stock", "das"))
    with pytest.raises(SystemExit, match=r"^error: [^\n]*$"):
        main([str(tmp_path), *words])
