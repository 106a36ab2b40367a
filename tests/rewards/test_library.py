"""The library's own scorer judges the last answer of a response, in workers that make each problem again."""

import json
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from rewards.library import LibraryReward, _problem, confined, digest
from rewards.workers import DEATHS, FAILURES, TIMEOUTS

needs_library = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed: make reasoning-gym"
)


def entry(task: str, index: int, **options: int) -> tuple[str, str]:
    """A problem as `LibraryReward` takes it, and its answer."""
    _, problem, _ = _problem(task, json.dumps(options), 0, index)
    named = {"task": task, "options": json.dumps(options), "seed": 0, "index": index}
    return json.dumps({**named, "question": digest(problem["question"])}), problem["answer"]


@pytest.fixture(scope="module")
def reward() -> Iterator[LibraryReward]:
    judge = LibraryReward(2, 20.0)
    yield judge
    judge.close()


@needs_library
def test_right_and_wrong_answers(reward: LibraryReward) -> None:
    problems = [entry("chain_sum", 3), entry("chain_sum", 250, min_terms=5), entry("spell_backward", 1)]
    entries = [named for named, _ in problems]
    assert reward([f"<answer>{answer}</answer>" for _, answer in problems], entries) == [1.0, 1.0, 1.0]
    assert reward([f"\\boxed{{{answer}}}" for _, answer in problems], entries) == [1.0, 1.0, 1.0]
    assert all(score < 1 for score in reward(["<answer>?</answer>", "no answer", "\\boxed{}"], entries))
    assert reward.take_counts() == {DEATHS: 0, FAILURES: 0, TIMEOUTS: 0}


@needs_library
def test_another_problem_than_the_one_asked_is_an_error(reward: LibraryReward) -> None:
    named = {**json.loads(entry("chain_sum", 3)[0]), "index": 4}
    with pytest.raises(ValueError, match="another problem"):
        reward(["<answer>1</answer>"], [json.dumps(named)])


@needs_library
def test_a_scorer_that_hangs_is_ended() -> None:
    """sympy computes this power for ever; the limit is CPU time, so that a busy machine changes no verdict."""
    judge = LibraryReward(1, 4.0)
    named, answer = entry("simple_integration", 0)
    assert judge(["<answer>9**9**9**9</answer>", f"<answer>{answer}</answer>"], [named, named]) == [0.0, 1.0]
    assert judge.take_counts() == {DEATHS: 0, FAILURES: 1, TIMEOUTS: 0}
    judge.close()


@needs_library
def test_answers_that_are_code_have_no_rights(reward: LibraryReward, tmp_path: Path) -> None:
    """This task's scorer calls eval on the answer. The same answer does write a file where nothing confines it."""
    named, _ = entry("spiral_matrix", 0)
    written = tmp_path / "written"
    attack = f"[open({str(written)!r}, 'w').close(), __import__('os').system('touch {written}')]"
    eval(attack)
    assert written.exists()
    written.unlink()
    assert reward([f"<answer>{attack}</answer>"], [named])[0] < 1
    assert not written.exists()
    kill = "[__import__('os').kill(__import__('os').getppid(), 9)]"
    assert reward([f"<answer>{kill}</answer>"], [named])[0] < 1
    assert reward.take_counts()[DEATHS] == 0


def raising(error: type[Exception]) -> Callable[[], float]:
    def score() -> float:
        raise error

    return score


def test_what_a_child_writes_is_a_score_or_nothing() -> None:
    """What no scorer raises by itself is a failure of the judge."""
    assert confined(lambda: 0.25, 5.0) == 0.25
    assert confined(lambda: 7, 5.0) == 1.0
    for unreadable in (ValueError, SyntaxError, KeyError, ZeroDivisionError):
        assert confined(raising(unreadable), 5.0) == 0.0
    for failure in (ImportError, OSError, SystemError):
        assert confined(raising(failure), 5.0) is None
    assert confined(lambda: os._exit(0), 5.0) is None
    for no_reward in (float("nan"), float("inf"), "0.5", None):  # the judge failed, and the answer is not wrong
        assert confined(lambda value=no_reward: value, 5.0) is None
    assert confined(lambda: float(os.write(3, b"9,5") * 0), 5.0) is None
