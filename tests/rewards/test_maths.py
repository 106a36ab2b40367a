"""The maths reward: equality by value, garbage tolerated, fast enough to be called on every response."""

from __future__ import annotations

import time

import pytest

from rewards.maths import accuracy_reward


@pytest.mark.parametrize(
    ("completion", "answer", "reward"),
    [
        ("The result is \\boxed{53}.", "53", 1.0),
        ("The result is \\boxed{54}.", "53", 0.0),
        ("a) 50+3=53\nThe result is \\boxed{", "53", 0.0),
        ("a) 50+3=53", "53", 0.0),
        ("so \\boxed{\\frac{1}{2}}", "0.5", 1.0),
        ("", "53", 0.0),
        ("\\boxed{}}}{{ \x00 \\frac{ \\boxed{\\boxed{", "53", 0.0),
        ("\\boxed{nonsense ++ *}", "53", 0.0),
    ],
)
def test_reward_of_one_completion(completion: str, answer: str, reward: float) -> None:
    assert accuracy_reward([completion], [answer]) == [reward]


def test_each_completion_meets_its_own_answer() -> None:
    assert accuracy_reward(["\\boxed{1}", "\\boxed{1}", "\\boxed{2}"], ["1", "2", "2"]) == [1.0, 0.0, 1.0]


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="shorter"):
        accuracy_reward(["\\boxed{1}"], [])


def test_gold_answer_must_parse() -> None:
    with pytest.raises(ValueError, match="gold answer"):
        accuracy_reward(["\\boxed{1}"], [""])


def test_long_responses_cost_under_three_milliseconds() -> None:
    passes = "a) 54+7=61\nb) 61-3=58\n" * 20
    completions = [f"{passes}The result is \\boxed{{{index}}}." for index in range(200)]
    accuracy_reward(completions[:5], ["7"] * 5)
    start = time.process_time()
    accuracy_reward(completions, ["7"] * 200)
    assert (time.process_time() - start) / 200 < 3e-3
