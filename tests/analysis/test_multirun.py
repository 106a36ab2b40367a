"""Times and rewards of trainings that differ in a setting and in seed, read from made-up runs."""

from pathlib import Path
from typing import Any

import pytest
from steps_on_disk import json_lines

from analysis.multirun import main


def make_run(folder: Path, lag: int, rewards: list[float], long_tail: bool = False) -> None:
    """long_tail: whether the fourth step has one."""
    folder.mkdir()
    (folder / "config.yaml").write_text(f"trainer: {{lag: {lag}}}\n")
    rows: list[dict[str, Any]] = [
        {"reward": reward, "rollout_s": 1.5, "step_s": 2.0, "decode_steps": 90, "length_max": 80, "length_median": 20.0}
        | ({"decode_steps": 130, "length_median": 10.0} if place == 3 and long_tail else {})
        for place, reward in enumerate(rewards)
    ]
    (folder / "metrics.jsonl").write_text(json_lines(rows))


def test_table_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "0", 2, [0.0] * 6 + [0.5, 0.7])
    make_run(tmp_path / "1", 0, [1.0] * 4, long_tail=True)
    make_run(tmp_path / "2", 2, [0.0] * 6 + [0.1, 0.3])
    main(["trainer.lag", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("trainer.lag")
    assert lines[2].split() == ["0", "1.500", "2.000", "100.0", "130.0", "5.00", "1.000", "±", "0.000", "1.000"]
    assert lines[3].split() == ["2", "1.500", "2.000", "90.0", "none", "4.00", "0.400", "±", "0.283", "0.600", "0.200"]
    assert len(lines) == 4
    assert (tmp_path / "rewards.png").stat().st_size > 0


def test_a_folder_without_runs_and_a_missing_setting_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no run.*task=train trainer\.lag=0,1"):
        main(["trainer.lag", str(tmp_path)])
    with pytest.raises(SystemExit, match="give a setting and a folder"):
        main([str(tmp_path)])
    make_run(tmp_path / "0", 0, [0.5])
    with pytest.raises(SystemExit, match=r"has no setting trainer\.lags"):
        main(["trainer.lags", str(tmp_path)])
