"""Further draws in place of groups whose rewards are equal, without an engine. Trainings: test_equal_runs.py. What
cannot be combined is in tests/experiments/run/bad_inputs.py.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from trl import GRPOTrainer

from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import Rollout
from das.trl.lag import done
from das.trl.step_rollouts import FinishedRollout, Sync
from experiments.training import dynamic_sampling
from experiments.training.dynamic_sampling import DynamicSampling, differing, one_after_another
from experiments.training.trainer import SpeculativeGRPOTrainer


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


class Generation:
    """A backend without an engine, which has rolled out five times."""

    rollouts = 5

    def submit(self, trainer: Any, rows: list[dict[str, int]], number: int) -> Any:
        self.rollouts += 1
        assert [row["row"] for row in rows] == [number, number], "a draw is the next rollout of the data"
        return done(finished(number - Generation.rollouts, str(number)))


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
    rewards: list[list[float | None]],
    trained: list[int],
    counts: tuple[int, ...],
    alarms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer: Any = SimpleNamespace(
        num_generations=2, args=SimpleNamespace(generation_batch_size=2), state=SimpleNamespace(global_step=3),
        train_dataset=[{"row": number} for number in range(9)], vllm_generation=Generation(),
    )  # fmt: skip
    monkeypatch.setattr(dynamic_sampling, "indexes_of_steps", lambda trainer: iter([[n, n] for n in range(9)]))
    judged = iter(rewards)
    sampling = DynamicSampling(trainer, 2, lambda rows: next(judged))
    first = Generation.rollouts
    assert sampling.rows([]) == [{"row": first + number} for number in trained for _ in range(2)]
    assert next(judged, None) is None, "it stops once rewards differ, and at the limit"
    assert sampling.taken is not None
    assert sampling.taken.rewards == rewards[trained[0]]
    row = sampling.columns()
    noted = row["dynamic_sampling"]
    assert (noted["draws"], noted["dropped"], noted["flat"]) == counts
    assert noted["drawn_reward"] == pytest.approx(
        np.mean([one for of_draw in rewards for one in of_draw if one is not None])
    )
    assert len(row["alarms"]) == alarms
    assert row["length_max"] == trained[0] + 1
    assert row["tokens"] == sum(2 * (number + 1) for number in range(len(rewards)))


def test_a_step_judges_each_draw_once_and_lets_other_arms_go_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a trainer of TRL whose methods call each other as TRL's do."""
    happened: list[Any] = []

    class Draws(Generation):
        def submit(self, *args: Any) -> Any:
            happened.append("draw")
            return super().submit(*args)

    def generate(self: Any, prompts: list[int]) -> Any:
        tokens, _ = self._generate_single_turn([[1], [1]])
        return prompts, tokens, None, prompts

    def judged(self: Any, rows: Any, prompts: Any, conversations: Any, tokens: Any) -> None:
        self._scored(tokens)

    def step(self: Any, rows: Any) -> Any:
        prompts = [row["prompt"] for row in rows]
        _, tokens, _, conversations = self._generate(prompts)
        self._calculate_rewards(rows, prompts, conversations, tokens)
        return tokens

    def reward(tokens: list[list[int]]) -> list[float]:
        happened.append("judge")
        return [0.0, float(len(tokens[0]) == 3)]

    for name, method in (
        ("_generate", generate), ("_calculate_rewards", judged), ("_generate_and_score_completions", step),
    ):  # fmt: skip
        monkeypatch.setattr(GRPOTrainer, name, method)
    monkeypatch.setattr(dynamic_sampling, "indexes_of_steps", lambda trainer: iter([[n, n] for n in range(9)]))
    trainer: Any = SpeculativeGRPOTrainer.__new__(SpeculativeGRPOTrainer)
    trainer.num_generations, trainer.args = 2, SimpleNamespace(generation_batch_size=2)
    trainer.state, trainer.vllm_generation = SimpleNamespace(global_step=3), Draws()
    trainer.train_dataset = [{"row": number, "prompt": number} for number in range(9)]
    trainer.barrier = SimpleNamespace(
        before_rollout=lambda: happened.append("wait"), after_rollout=lambda: happened.append("go on"), waited_s=0.0
    )
    trainer._reward, trainer._exposed_s = reward, 0.0
    trainer.rollouts = DynamicSampling(trainer, 5, trainer._judge)
    assert trainer._generate_and_score_completions([]) == [[2, 2, 2], [9, 9, 9]]
    assert happened == ["wait", *["draw", "judge"] * 3, "go on"]
    assert trainer.rewards == [0.0, 1.0]
