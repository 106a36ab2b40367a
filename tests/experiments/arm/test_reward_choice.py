"""Rewards that cannot judge the data, and impossible limits, are refused. The others work end to end."""

import random
from pathlib import Path

import pytest
from composed import composed_run

from experiments.arm.data import dataset
from experiments.arm.reward import make_reward
from experiments.arm.validate import check_reward
from experiments.policies.problems import make_problems
from experiments.policies.solutions import MANNERS, solution


def test_programs_are_rewarded() -> None:
    config = composed_run("data=programs", "reward=code", "reward.parallel=1")
    check_reward(config)
    rows = dataset(config, "")
    problems = make_problems("programs", len(rows), config.seed, config.data.mix, "training")
    assert [problem.answer for problem in problems] == list(rows["tests"])
    answers = [solution(problem, random.Random(0), MANNERS["programs"]) for problem in problems]
    completions = [[{"role": "assistant", "content": answer}] for answer in [*answers, "def f(x): return x"]]
    rewards = make_reward(config.reward)(completions=completions, tests=[*rows["tests"], rows[0]["tests"]])
    assert rewards[-1] == 0.0
    assert sum(rewards) >= 1


def test_puzzles_are_rewarded() -> None:
    config = composed_run()
    check_reward(config)
    row = dataset(config, "")[0]
    completions = [[{"role": "assistant", "content": text}] for text in (f"\\boxed{{{row['answer']}}}", "\\boxed{99}")]
    assert make_reward(config.reward)(completions=completions, answer=[row["answer"]] * 2) == [1.0, 0.0]


def test_a_function_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_rewards.py").write_text(
        "def digits(completions, answer, **columns):\n"
        "    return [sum(c.isdigit() for c in turns[-1]['content']) for turns in completions]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = composed_run("reward=own", "reward.function=user_rewards:digits")
    check_reward(config)
    reward = make_reward(config.reward)
    assert reward([[{"content": "a1b22"}], [{"content": "none"}]], answer=["1", "2"], prompts=["p", "q"]) == [3.0, 0.0]
    reward.close()
