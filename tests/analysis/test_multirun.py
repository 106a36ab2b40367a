"""Times, rewards and kept tokens of trainings that differ in a setting and in seed, read from made-up runs."""

from pathlib import Path
from typing import Any

import pytest
from steps_on_disk import json_lines

from analysis.multirun import main


def make_run(folder: Path, partial: int, rewards: list[float], verified: list[list[int]] | None) -> None:
    folder.mkdir()
    (folder / "config.yaml").write_text(f"trainer: {{partial: {partial}}}\n")
    rows: list[dict[str, Any]] = [
        {"reward": reward, "rollout_s": 1.5, "step_s": 2.0, "decode_steps": 90, "length_max": 80, "length_median": 20.0}
        | ({} if verified is None else {"partial": {"verified": verified}})
        | ({"decode_steps": 130, "length_median": 10.0} if place == 3 and verified is None else {})
        for place, reward in enumerate(rewards)
    ]
    (folder / "metrics.jsonl").write_text(json_lines(rows))


def test_tables_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "0", 2, [0.0] * 6 + [0.5, 0.7], [[1, 15, 15], [2, 16, 4], [1, 300, 299]])
    make_run(tmp_path / "1", 0, [1.0] * 4, None)
    make_run(tmp_path / "2", 2, [0.0] * 6 + [0.1, 0.3], [])
    main(["trainer.partial", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("trainer.partial")
    assert lines[2].split() == ["0", "1.500", "2.000", "100.0", "130.0", "5.00", "1.000", "±", "0.000", "1.000"]
    assert lines[3].split() == ["2", "1.500", "2.000", "90.0", "none", "4.00", "0.400", "±", "0.283", "0.600", "0.200"]
    found = {line[:20].strip(): line[20:].split() for line in lines[7:]}
    assert found == {
        "1 step before": ["16", str(8 * 315), "99.7%"],
        "2 steps before": ["8", str(8 * 16), "25.0%"],
        "below 16 tokens": ["8", str(8 * 15), "100.0%"],
        "below 64 tokens": ["8", str(8 * 16), "25.0%"],
        "256 tokens or more": ["8", str(8 * 300), "99.7%"],
        "all": ["24", str(8 * 331), "96.1%"],
    }
    assert (tmp_path / "rewards.png").stat().st_size > 0


def test_a_training_without_responses_put_aside_has_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "0", 0, [0.5, 0.5], None)
    main(["trainer.partial", str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_folder_without_runs_and_a_missing_setting_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no run.*task=train trainer\.lag=0,1"):
        main(["trainer.lag", str(tmp_path)])
    with pytest.raises(SystemExit, match="give a setting and a folder"):
        main([str(tmp_path)])
    make_run(tmp_path / "0", 0, [0.5], None)
    with pytest.raises(SystemExit, match=r"has no setting trainer\.lags"):
        main(["trainer.lags", str(tmp_path)])
