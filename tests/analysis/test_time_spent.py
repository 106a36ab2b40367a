"""Where the time of a step goes, and what it could not fall below."""

import json
from pathlib import Path

import pytest
from steps_on_disk import write_arm

from analysis.time_spent import FREE, PARTS, RIGHT, TRAINING, main, spent

# 16 requests, 6, then 1: passes of 1, 2, 3 and 4 s, of which the drafter took 1 s in all.
PASSES: dict[str, list[float]] = {
    "step_time_s": [1.0, 3.0, 6.0, 10.0],
    "step_live": [16, 16, 6, 1],
    "step_tokens": [16, 32, 12, 4],
    "step_emitted": [16, 24, 9, 1],
}
ROW: dict[str, float] = {"step": 1, "rollout_s": 12.0, "draft_s": 1.0, "exposed_s": 13.0, "step_s": 20.0, "drafted": 25}


def test_the_parts_are_the_whole_step() -> None:
    found = spent(ROW, PASSES)
    assert sum(found[name] for name in PARTS) == pytest.approx(ROW["step_s"])
    assert [round(found[name], 6) for name in PARTS] == [2.7, 2.7, 0.0, 3.6, 1.0, 2.0, 1.0, 7.0]


def test_floors_say_what_wrong_rows_and_drafting_cost() -> None:
    found = spent(ROW, PASSES)
    assert found[FREE] == 11.0
    assert found[RIGHT] == pytest.approx(2.0 + 1.0 + 2.0 * 24 / 32 + 3.0 * 9 / 12 + 4.0 / 4)
    undrafted = spent({**ROW, "drafted": 0, "draft_s": 0.0}, PASSES)
    assert not {FREE, RIGHT} & undrafted.keys()


def test_an_arm_that_does_not_train_has_no_training() -> None:
    row = {key: value for key, value in ROW.items() if key not in ("step_s", "exposed_s")}
    assert TRAINING not in spent(row, PASSES)


def test_a_comparison_is_summed_up_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, drafted in (("none", 0), ("das", 25)):
        rows = [{**ROW, "step": step, "drafted": drafted} for step in (1, 2)]
        write_arm(tmp_path / "arms" / name, rows, timelines=[PASSES] * 2)
    (tmp_path / "result.json").write_text(json.dumps({"arms": {"none": {}, "das": {}}}))
    main([str(tmp_path), "--from-step", "2"])
    assert ["training", "7.000", "7.000"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert (tmp_path / "time_spent.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="none has no step 3 or later"):
        main([str(tmp_path), "--from-step", "3"])


def test_a_folder_without_a_comparison_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no finished comparison"):
        main([str(tmp_path)])
