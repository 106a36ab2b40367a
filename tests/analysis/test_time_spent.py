"""Where the time of a step goes, and what it could not fall below."""

import pytest

from analysis.time_spent import FREE, PARTS, RIGHT, TRAINING, spent

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
