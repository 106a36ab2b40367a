"""Further draws in place of groups whose rewards are equal, without an engine. Trainings: test_equal_runs.py. What
cannot be combined is in tests/experiments/run/bad_inputs.py.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.trl.lag import FinishedRollout, Sync
from experiments.training.dynamic_sampling import DynamicSampling, differing, one_after_another


def test_groups_whose_rewards_differ() -> None:
    assert differing([0, 0, 0, 1, 1, 1, 0.5, 0.25], 2) == [1, 3]
    assert differing([1, 1, 1, 1], 4) == []


def finished(draw: int, problem: str) -> FinishedRollout:
    """The rollout of draw `draw`: a group of two responses, of draw + 1 tokens each."""
    report = RolloutReport(
        passes=2, drafted=3, history_tokens=10 * draw, calibration_error=0.1 * draw, step_time_s=[1.0, 2.0]
    )
    cost = RequestCost(1, 0, first_s=0.5, last_s=2.0)
    responses = [[draw] * (draw + 1), [9] * (draw + 1)]
    rollout = Rollout(draw, [problem] * 2, responses, ["stop"] * 2, [cost] * 2, 2.5, report)
    return FinishedRollout(rollout, [[-0.5]] * 2, [[1], [1]], 7, Sync())


def test_draws_of_a_step_are_one_rollout() -> None:
    whole = one_after_another([finished(4, "p"), finished(5, "q")], step=3).rollout
    assert (whole.step, whole.problems, whole.rollout_s) == (3, ["p", "p", "q", "q"], 5.0)
    assert [cost.last_s for cost in whole.requests] == [2.0, 2.0, 4.5, 4.5]
    assert whole.report.step_time_s == [1.0, 2.0, 3.5, 4.5]
    report = whole.report
    assert (report.passes, report.drafted, report.history_tokens, report.calibration_error) == (4, 6, 50, 0.5)


@pytest.mark.parametrize(
    ("rewards", "trained", "counts", "alarms"),
    [
        ([[0, 1]], [0], (1, 0, 0), 0),
        ([[0, 0], [1, 1], [1, 0]], [2], (3, 2, 0), 0),
        ([[0, 0], [1, 1], [2, 2]], [0], (3, 2, 1), 1),
        ([[0, None], [None, None], [2, 1]], [2], (3, 2, 0), 0),  # a response without a reward teaches nothing
    ],
)
def test_draws_until_rewards_differ(
    rewards: list[list[float | None]], trained: list[int], counts: tuple[int, ...], alarms: int
) -> None:
    trainer: Any = SimpleNamespace(
        num_generations=2, args=SimpleNamespace(generation_batch_size=2), state=SimpleNamespace(global_step=3),
        train_dataset=range(9), vllm_generation=SimpleNamespace(rollouts=5),
    )  # fmt: skip
    sampling, coming = DynamicSampling(trainer, 2), iter(enumerate(rewards))

    def draw() -> list[float | None]:
        number, of_draw = next(coming)
        sampling._draw, sampling._rows = finished(number, str(number)), [{"row": number}] * 2
        return of_draw

    vars(sampling)["_judged_draw"] = draw
    assert sampling.rows() == [{"row": number} for number in trained for _ in range(2)]
    assert next(coming, None) is None, "it stops once rewards differ, and at the limit"
    assert sampling.rewards == rewards[trained[0]]
    row = sampling.row()
    noted = row["dynamic_sampling"]
    assert (noted["draws"], noted["dropped"], noted["flat"]) == counts
    assert noted["drawn_reward"] == pytest.approx(
        np.mean([one for of_draw in rewards for one in of_draw if one is not None])
    )
    assert len(row["alarms"]) == alarms
    assert row["length_max"] == trained[0] + 1
    assert row["tokens"] == sum(2 * (number + 1) for number in range(len(rewards)))
