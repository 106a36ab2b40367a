"""Problems of reasoning-gym: the same in every process, splits without a common question, mistakes in one line."""

import json
from importlib.util import find_spec
from typing import Any

import pytest

from experiments.harness.evaluation.held_out import group_settings
from experiments.problems import reasoning_gym
from experiments.run.errors import UserError

needs_library = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: make reasoning-gym"
)


def load(
    policy: str, seed: int = 0, evaluation: bool = False, room: int = 400, **settings: Any
) -> list[dict[str, Any]]:
    data = json.dumps({**group_settings("data", "reasoning_gym"), **settings})
    reasoning_gym.load.cache_clear()
    return reasoning_gym.load(data, seed, evaluation, room, policy, "{}")[0].to_list()


@needs_library
def test_problems_are_the_same_every_time_and_splits_share_none(tiny_policy: str) -> None:
    """The order of Python's sets decides this task's problems; it differs between processes unless it is fixed."""
    rows, again, others = (load(tiny_policy, seed, task="ransom_note", problems=40) for seed in (0, 0, 1))
    assert rows == again
    assert len({row["problem_id"] for row in rows}) == 40
    held_out = [load(tiny_policy, seed, True, task="ransom_note", problems=20) for seed in (0, 1)]
    trained_on = {row["problem_id"] for row in (*rows, *others)}
    assert not trained_on & {row["problem_id"] for rows in held_out for row in rows}
    assert held_out[0] != held_out[1]


@needs_library
def test_too_few_questions_are_one_line(tiny_policy: str) -> None:
    options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    with pytest.raises(UserError, match=r"distinct questions of data.task=chain_sum were found"):
        load(tiny_policy, options=options, problems=400)
    with pytest.raises(UserError, match="longer than 20 tokens"):
        load(tiny_policy, room=20, problems=2)


def test_a_missing_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reasoning_gym, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed: run `make reasoning-gym`"):
        reasoning_gym.check(group_settings("data", "reasoning_gym"))
