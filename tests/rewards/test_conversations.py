"""Rewards as TRL calls them, what counts as one, and who counts what went wrong with their workers."""

import asyncio
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import repeat
from typing import Any

import numpy as np
import pytest
import torch

from rewards.conversations import JudgedConversations, OwnConversations, brevity
from rewards.maths import MathsReward
from rewards.reward import RewardError
from rewards.workers import DEATHS, no_counts


def conversations(*texts: str) -> list[list[dict[str, str]]]:
    return [[{"role": "assistant", "content": text}] for text in texts]


def test_the_judge_starts_at_the_first_call_and_its_counts_are_its_own() -> None:
    started: list[MathsReward] = []

    def start() -> MathsReward:
        started.append(MathsReward(1, 30.0))
        return started[-1]

    reward, other = JudgedConversations(start, "answer"), JudgedConversations(start, "answer")
    assert reward.take_counts() == no_counts()
    assert not started
    answers = {"answer": ["3", "3"], "prompts": ["", ""]}
    assert reward(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert other(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert len(started) == 2
    (worker,) = started[0]._workers._all
    worker.process.kill()
    assert reward(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert other.take_counts() == no_counts()
    assert reward.take_counts() == {**no_counts(), DEATHS: 1}
    assert reward.take_counts() == no_counts()
    for each in (reward, other):
        each.close()
    assert not any(judge._workers._all for judge in started)
    assert reward(completions=conversations("\\boxed{3}", "\\boxed{4}"), **answers) == [1.0, 0.0]
    assert len(started) == 3  # another one
    reward.close()


def test_a_last_turn_without_text_scores_as_an_empty_one() -> None:
    """A policy may end with a call of a tool: its content is null, or missing."""
    tool_calls = [{"type": "function", "function": {"name": "add", "arguments": {}}}]
    ends = [[{"role": "assistant", "content": None, "tool_calls": tool_calls}], [{"role": "assistant"}]]
    judged = JudgedConversations(lambda: MathsReward(1, 30.0), "answer")
    assert judged(completions=ends, answer=["3", "3"], prompts=["", ""]) == [0.0, 0.0]
    assert brevity(ends, answer=["3", "3"]) == [1.0, 1.0]
    judged.close()


# ---- a function of the user ----


def judged(function: Any) -> list[float | None]:
    """What TRL gets of a function that judges four responses."""
    own = OwnConversations(function, "reward.function=mine:f")
    return own(completions=conversations("a", "b", "c", "d"), prompts=["p"] * 4, answer=["1"] * 4)


@pytest.mark.parametrize(
    ("returned", "rewards"),
    [
        ([1.0, None, 0, None], [1.0, None, 0.0, None]),  # None abstains, as in TRL
        ((True, False, True, True), [1.0, 0.0, 1.0, 1.0]),
        (np.arange(4, dtype=np.float32), [0.0, 1.0, 2.0, 3.0]),
        (np.ones((4, 1)), [1.0] * 4),
        (torch.ones(4, dtype=torch.bfloat16), [1.0] * 4),
        ([Decimal("0.5"), Fraction(1, 4), np.int64(-7), 10**30], [0.5, 0.25, -7.0, 1e30]),
        (iter([1.0, 2.0, 3.0, 4.0]), [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_what_is_a_reward_reaches_trl(returned: Any, rewards: list[float | None]) -> None:
    found = judged(lambda completions, **columns: returned)
    assert found == rewards
    assert {type(reward) for reward in found} <= {float, type(None)}


LIST = "return a list with a reward for each of the 4 responses"
RULE = "a reward is a finite number, or None for a response without one"


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (1.0, f" returned 1.0 (float): {LIST}"),
        (None, f" returned nothing: {LIST}"),
        (np.array(1.0), " returned array(1.) (ndarray): return a list, a reward for each response"),
        ([1.0], " returned 1 rewards for 4 responses: return one for each, in order"),
        (repeat(1.0), " returned more than 4 rewards for 4 responses: return one for each, in order"),
        ([1.0, 2.0, "3.5", 4.0], f", response 2 of 4 (counted from 0): '3.5' (str): {RULE}"),
        ([1.0, 2.0, 3.0, math.nan], f", response 3 of 4 (counted from 0): nan (float): {RULE}"),
        ([1e39] * 4, f", response 0 of 4 (counted from 0): 1e+39 (float): {RULE}"),  # beyond float32
        (np.ones((4, 2)), f", response 0 of 4 (counted from 0): array([1., 1.]) (ndarray): {RULE}"),
    ],
)
def test_what_is_no_reward_is_named(returned: Any, line: str) -> None:
    with pytest.raises(RewardError) as refused:
        judged(lambda completions, **columns: returned)
    assert str(refused.value) == f"reward.function=mine:f{line}"


def test_coroutines_are_awaited_in_one_event_loop() -> None:
    loops = set()

    async def late(completions: list[Any], **columns: Any) -> list[float]:
        await asyncio.sleep(0)
        loops.add(asyncio.get_running_loop())
        return [2.0] * len(completions)

    class Late:
        async def __call__(self, completions: list[Any], **columns: Any) -> list[float]:
            return await late(completions)

    own = OwnConversations(late, "reward.function=mine:late")
    for _ in range(2):  # a session that the function opened in the first step lives in the second
        assert own(completions=conversations("a", "b")) == [2.0, 2.0]
    assert len(loops) == 1
    assert judged(Late()) == [2.0] * 4
    assert judged(lambda completions, **columns: late(completions)) == [2.0] * 4


def in_a_library(completions: list[Any], **columns: Any) -> list[float]:
    return [float(json.loads(turns[-1]["content"])) for turns in completions]


def halfway(completions: list[Any], **columns: Any) -> Iterator[float]:
    yield 1.0
    raise OSError("net\nwork down")


async def coroutine(completions: list[Any], **columns: Any) -> list[float]:
    raise OSError("down")


def without_columns(completions: list[Any]) -> list[float]:
    return [1.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "line", "last"),
    [
        (in_a_library, " raised JSONDecodeError: Expecting value: line 1 column 1 (char 0)", in_a_library),
        (halfway, " raised OSError: net work down", halfway),
        (coroutine, " raised OSError: down", coroutine),
        (without_columns, " raised TypeError: without_columns() got an unexpected keyword argument 'prompts'", None),
    ],
)
def test_an_error_in_the_function_names_it_and_the_place(function: Any, line: str, last: Any) -> None:
    with pytest.raises(RewardError) as refused:
        judged(function)
    text = str(refused.value)
    assert text.startswith(f"reward.function=mine:f{line}")
    code = None if last is None else last.__code__
    within = [] if code is None else [number for *_, number in code.co_lines() if number]
    assert code is None or text in [f"reward.function=mine:f{line} ({__file__}, line {number})" for number in within]
