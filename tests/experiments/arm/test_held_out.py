"""Which problems a training is evaluated on: never those that it trains on, and every mistake is one line."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from composed import composed, composed_run
from refusals import one_line
from steps_on_disk import json_lines

from experiments.arm import validate
from experiments.arm.data import dataset
from experiments.arm.evaluation import Evaluation, check, held_out, held_out_data, judge_config, ks_of
from experiments.arm.reward import make_reward
from experiments.run.errors import CONFIGS, UserError
from experiments.settings.checked import plain
from experiments.settings.compose import group_settings
from experiments.settings.config import RunConfig


def evaluating(*overrides: str) -> RunConfig:
    return composed_run("eval.every=2", *overrides)


def set_file(folder: Path, name: str, questions: list[str]) -> str:
    path = folder / f"{name}.jsonl"
    path.write_text(json_lines({"problem": question, "answer": "1"} for question in questions))
    return str(path)


@pytest.mark.parametrize("group", ["data", "reward"])
def test_settings_are_those_that_hydra_composes(group: str) -> None:
    for path in (CONFIGS / group).glob("*.yaml"):
        assert plain(group_settings(group, path.stem)) == plain(composed(f"{group}={path.stem}")[group])


@pytest.mark.parametrize("data", ["puzzles", "programs"])
def test_generated_problems_hold_out_a_split(data: str, tiny_policy: str) -> None:
    reward = "code" if data == "programs" else "maths"
    config = evaluating(f"data={data}", f"reward={reward}", "data.problems=60", "eval.problems=40")
    training = dataset(config, tiny_policy)
    rows = held_out(config, tiny_policy, training)
    assert len(rows) == 40
    assert not set(rows["problem_id"]) & set(training["problem_id"])
    assert rows.column_names == training.column_names


def test_published_sets_are_evaluated_on_their_held_out_part(tiny_policy: str, tmp_path: Path) -> None:
    path = set_file(tmp_path, "set", [f"What is {n} less {n - 1}?" for n in range(100)])
    overrides = ("data=problem_set", f"data.path={path}", "data.held_out=0.3", "eval.problems=null")
    config = evaluating(*overrides)
    check(config)
    training = dataset(config, tiny_policy)
    rows = held_out(config, tiny_policy, training)
    assert len(rows) + len(training) == 100
    assert 15 < len(rows) < 45


@pytest.mark.parametrize("question", ["What is one?", "What  is\none?"])
def test_a_set_that_overlaps_the_training_is_refused(question: str, tiny_policy: str, tmp_path: Path) -> None:
    trained_on = set_file(tmp_path, "trained_on", ["What is one?", "Is it one?"])
    other = set_file(tmp_path, "other", [question, "Which one?"])
    overrides = ("data=problem_set", f"data.path={trained_on}", "eval.data=problem_set", "eval.problems=null")
    config = evaluating(*overrides, f"eval.path={other}")
    with one_line("eval.data=problem_set"):
        held_out(config, tiny_policy, dataset(config, tiny_policy))


def test_a_task_that_samples_alone_needs_no_step_of_problems() -> None:
    config = evaluating("eval.every=0", "task=evaluate", "data.problems=1")
    validate.check(config, in_steps=False)
    with pytest.raises(UserError, match=r"data\.problems=1"):
        validate.check(config)


def test_nothing_is_checked_where_nothing_is_evaluated() -> None:
    check(evaluating("eval.every=0", "data=gsm8k", "eval.k=[1,8]"))


def test_the_set_is_judged_by_its_own_reward() -> None:
    config = evaluating("reward=brevity", "eval.data=livecodebench")
    judge: Any = judge_config(config.reward, held_out_data(config))
    assert (judge.name, judge.limits.cpu_s) == ("code", 4)
    config = evaluating("reward=maths", "reward.parallel=7")
    assert judge_config(config.reward, held_out_data(config)) is config.reward


def test_ks() -> None:
    assert [ks_of(None, samples, "eval") for samples in (1, 6, 8)] == [[1], [1, 2, 4], [1, 2, 4, 8]]
    assert ks_of([4, 2], 6, "eval") == [1, 2, 4]
    assert ks_of([], 6, "eval") == [1]


def test_greedy_evaluation(tiny_policy: str) -> None:
    """Temperature 0, where nothing is trained: in task=evaluate, and in the evaluations of a training."""

    def sampled_at(config: RunConfig) -> Any:
        rows = held_out(config, tiny_policy, dataset(config, tiny_policy)).to_list()
        with closing(Evaluation(config, tiny_policy, rows, make_reward(config.reward), 1)) as evaluation:
            return evaluation.request(0).sampling_params.temperature

    few = ("data.problems=8", "eval.problems=2")
    assert sampled_at(evaluating(*few, "trainer.temperature=0.6")) == 0.6
    assert sampled_at(evaluating(*few, "eval.temperature=0")) == 0
    assert sampled_at(evaluating(*few, "eval.temperature=0.3")) == 0.3
    assert sampled_at(composed_run("task=evaluate", "trainer.temperature=0", *few)) == 0
    assert composed_run("task.train=false", "trainer.temperature=0").trainer.temperature == 0
