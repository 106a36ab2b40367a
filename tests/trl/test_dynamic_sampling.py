"""Further draws in place of groups whose rewards are equal: drafts change no bit, a resumed run is the same, each
trained token is the newest weights'. What cannot be combined is in tests/experiments/run/bad_inputs.py.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lag_runs import outcome, tokens_of_checkpoints, train_again, train_all

from analysis import read
from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import Rollout, request_seed
from das.trl.lag import FinishedRollout, Sync
from experiments.tasks.kill_test import differing_files, timeless
from experiments.training.dynamic_sampling import DynamicSampling, differing, one_after_another

FURTHER = 2
SETTINGS = ("reward=own", "reward.function=lag_runs:often_flat", f"trainer.dynamic_sampling={FURTHER}")


@pytest.fixture(scope="module")
def trained(in_process: Callable[..., Any], repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dynamic_sampling")
    in_process(train_all, {arm: [arm, *SETTINGS] for arm in ("none", "das")}, repetitive_policy, folder)
    return folder


@pytest.mark.slow
def test_drafts_change_no_bit(trained: Path) -> None:
    none, das = (read.metrics(trained / arm) for arm in ("none", "das"))
    drawn = [row["dynamic_sampling"] for row in none]
    assert outcome(trained / "das") == outcome(trained / "none")
    assert [row["dynamic_sampling"] for row in das] == drawn
    assert sum(row["passes"] for row in das) < sum(row["passes"] for row in none)
    assert len({step["draws"] for step in drawn}) > 1, "some steps draw again, and some do not"
    assert max(step["draws"] for step in drawn) == 1 + FURTHER
    begun = 0  # draws of the steps before
    for step, row in zip(drawn, das, strict=True):
        assert step["groups"] == 2 * step["draws"] == 2 + step["dropped"]
        assert bool(step["flat"]) == any("teach nothing" in alarm for alarm in row["alarms"])
        responses = read.rollout(trained / "das", row["step"])
        seeds = [request_seed(0, begun + place // 8, place % 8) for place in range(8 * step["draws"])]
        of_trained = [response["seed"] for response in responses]
        assert [seed for seed in seeds if seed in of_trained] == of_trained, "those of as many steps with one draw each"
        begun += step["draws"]
        groups = [[response["reward"] for response in responses[start : start + 4]] for start in (0, 4)]
        assert sum(min(group) == max(group) for group in groups) == step["flat"]
        assert bool(row["grad_norm"]) == (step["flat"] < 2)
    assert any(step["flat"] > 0 for step in drawn)
    assert any(step["draws"] > 1 and not step["flat"] for step in drawn)


@pytest.mark.slow
@pytest.mark.nightly
def test_an_engine_in_a_process_of_its_own(
    in_process: Callable[..., Any], trained: Path, repetitive_policy: str, tmp_path: Path
) -> None:
    in_process(train_all, {"beside": ["das", *SETTINGS, "engine.own_process=true"]}, repetitive_policy, tmp_path)
    assert outcome(tmp_path / "beside") == outcome(trained / "none")


@pytest.mark.slow
@pytest.mark.nightly
def test_the_newest_weights_draw_every_trained_token(
    in_process: Callable[..., Any], trained: Path, repetitive_policy: str
) -> None:
    assert outcome(trained / "das")["tokens"] == in_process(
        tokens_of_checkpoints, repetitive_policy, trained / "das", 0, True
    )


@pytest.mark.slow
def test_a_resumed_run_is_the_same(
    in_process: Callable[..., Any], trained: Path, repetitive_policy: str, tmp_path: Path
) -> None:
    whole, resumed = trained / "das", tmp_path / "resumed"
    in_process(train_again, "das", repetitive_policy, whole, resumed, 3, *SETTINGS)
    assert outcome(resumed) == outcome(whole)
    assert timeless(read.metrics(resumed)) == timeless(read.metrics(whole))
    assert list(differing_files(whole, resumed)) == []


# ---- without an engine ----


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
