"""Rewards that cannot judge the data, and impossible limits, are refused. The others work end to end."""

import random
from pathlib import Path

import pytest
from composed import composed_run
from sandboxes import best_isolation

from experiments.harness.data import dataset, frequencies
from experiments.harness.reward import make_reward
from experiments.harness.validate import check_reward
from experiments.run.errors import UserError
from experiments.small_policy.problems import make_problems
from experiments.small_policy.solutions import MANNERS, solution


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["reward=code"], "cannot judge data=puzzles"),
        (["data=programs"], "reward=maths cannot judge data=programs"),
        (["data=math500", "reward=code"], "reward=code cannot judge data=math500: choose maths or brevity"),
        (["data=deepcoder"], "reward=maths cannot judge data=deepcoder: choose code or brevity"),
        (["data.judged_by=taste"], "data.judged_by=taste: must be one of maths, code, reasoning_gym"),
        (["data=programs", "reward=code", "reward.isolation=none"], "must be one of full, weak"),
        (["data=programs", "reward=code", "reward.limits.cpu_s=0"], "reward.limits.cpu_s=0"),
        (["data=programs", "reward=code", "reward.limits.cpu_s=1.5"], "reward.limits.cpu_s=1.5"),
        (["data=programs", "reward=code", "reward.limits.wall_s=inf"], "reward.limits.wall_s=inf"),
        (
            ["data=programs", "reward=code", "+reward.limits.disk_mb=1"],
            "disk_mb: there is no such setting",
        ),
        (["data=programs", "reward=code", "reward.parallel=0"], "reward.parallel=0"),
        (["data=programs", "reward=code", "reward.isolation=weak", "reward.limits.memory_mb=8"], "does not pass"),
    ],
)
def test_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_reward(composed_run(*overrides))


def test_programs_are_rewarded() -> None:
    config = composed_run("data=programs", "reward=code", "reward.parallel=1", f"reward.isolation={best_isolation()}")
    check_reward(config)
    rows = dataset(config, "")
    problems = make_problems("programs", len(rows), config.seed, frequencies(config.data), "training")
    assert [problem.answer for problem in problems] == list(rows["tests"])
    written = [solution(problem, random.Random(0), MANNERS["programs"]) for problem in problems]
    answers = ["".join(text for text, _ in parts) for parts in written]
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
        "nothing = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = composed_run("reward=own", "reward.function=user_rewards:digits")
    check_reward(config)
    reward = make_reward(config.reward)
    assert reward([[{"content": "a1b22"}], [{"content": "none"}]], answer=["1", "2"], prompts=["p", "q"]) == [3.0, 0.0]
    reward.close()
    for name, words in (("nowhere:f", "no module 'nowhere'"), ("user_rewards:nothing", "give module:function")):
        with pytest.raises(UserError, match=words):
            check_reward(composed_run("reward=own", f"reward.function={name}"))
