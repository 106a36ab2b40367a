"""Worked solutions are right unless they slip; later passes and checks notice slips; TRL understands the calls."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from experiments.small_policy.problems import PUZZLES, Problem, calculator, make_problems
from experiments.small_policy.solutions import MANNERS, Manner, solution
from experiments.small_policy.tokenizer import ASSISTANT, END, USER, train_tokenizer
from rewards.code import CodeReward
from rewards.maths import accuracy_reward

LINE = re.compile(r"^[a-h]\) \w+ \d(?:: | ~ )(\d+)([-+*])(\d+)=(\d+)$", re.MULTILINE)
EQUATION = re.compile(r"(\d+)\+(\d+)=(\d+)")
MIX = {2: 1.0, 3: 1.0, 8: 1.0}
CAREFUL, QUICK = 0, 1


def written(problem: Problem, seed: int, *manners: Manner) -> str:
    return "".join(text for text, _ in solution(problem, random.Random(seed), manners))


def manner(kind: str, index: int, **chances: float) -> Manner:
    """A manner with other chances. All that are not named here are 0."""
    return replace(MANNERS[kind][index], chances=chances)


def holds(line: tuple[str, str, str, str]) -> bool:
    left, sign, right, result = line
    values = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
    return values[sign] == int(result)


def right(texts: list[str], problems: list[Problem]) -> float:
    return sum(accuracy_reward(texts, [problem.answer for problem in problems])) / len(problems)


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), index=st.sampled_from([CAREFUL, QUICK]))
def test_chains_without_slips_are_right(seed: int, index: int) -> None:
    problems = make_problems("arithmetic", 1, seed, MIX)
    text = written(problems[0], seed, manner("arithmetic", index, again=0.5, notice=0.2))
    assert right([text], problems) == 1
    assert all(holds(line) for line in LINE.findall(text))


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000))
def test_slips_stay_in_range_and_decide_correctness(seed: int) -> None:
    problems = make_problems("arithmetic", 1, seed, MIX)
    text = written(problems[0], seed, manner("arithmetic", QUICK, slip=0.4))
    lines = LINE.findall(text)
    assert len(lines) == problems[0].question.count(")")
    assert all(2 <= int(line[3]) <= 19 for line in lines)
    if all(holds(line) for line in lines):
        assert right([text], problems) == 1


def test_noticed_slips_are_corrected() -> None:
    slipping = manner("arithmetic", QUICK, slip=0.5, again=0.7, notice=1.0)
    noticed = 0
    for seed, problem in enumerate(make_problems("arithmetic", 100, 1, MIX)):
        first, *later = written(problem, seed, slipping).split("Let me check.\n")
        if later:
            assert right([later[-1]], [problem]) == 1
            slipped = not all(holds(line) for line in LINE.findall(first))
            assert ("was wrong" in later[0]) == slipped
            noticed += slipped
    assert noticed > 20


def test_programs_are_right_unless_they_slip(code_reward: CodeReward) -> None:
    problems = make_problems("programs", 30, 1, MIX)
    tests = [problem.answer for problem in problems]
    sure, slipping = manner("programs", QUICK, again=0.5), manner("programs", QUICK, slip=1.0)
    assert code_reward([written(problem, 0, sure) for problem in problems], tests) == [1.0] * 30
    slipped = code_reward([written(problem, 0, slipping) for problem in problems], tests)
    assert sum(slipped) <= 10  # two slips may cancel out
    noticing = manner("programs", QUICK, slip=1.0, again=0.99, notice=1.0)
    assert sum(code_reward([written(problem, 0, noticing) for problem in problems], tests)) >= 28
    assert code_reward(["f = lambda x: x"] * 30, tests) == [0.0] * 30


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(list(PUZZLES)))
def test_plain_solutions_of_puzzles_are_right(seed: int, kind: str) -> None:
    puzzles = make_problems("puzzles", 1, seed, {kind: 1})
    text = written(puzzles[0], seed, *MANNERS["puzzles plain"])
    assert all(int(first) + int(second) == int(total) for first, second, total in EQUATION.findall(text))
    assert right([text], puzzles) == 1


def test_slips_make_wrong_answers_and_checks_notice_them() -> None:
    puzzles = make_problems("puzzles", 60, 1, {"pair": 1})

    def of(**chances: float) -> float:
        slipping = manner("puzzles", QUICK, slip=0.6, lucky=0.2, **chances)
        return right([written(puzzle, seed, slipping) for seed, puzzle in enumerate(puzzles)], puzzles)

    assert of() < 0.9
    assert of(check=1.0) == 1


def test_the_careful_manner_is_right_more_often_and_longer() -> None:
    puzzles = make_problems("puzzles", 80, 2, {"pair": 3, "triple": 3, "walk": 2})
    careful, quick = ([written(puzzle, seed, one) for seed, puzzle in enumerate(puzzles)] for one in MANNERS["puzzles"])
    assert right(careful, puzzles) > right(quick, puzzles)
    assert sum(map(len, careful)) > sum(map(len, quick))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(["Start with 12"], vocab_size=512, digits=2)


def test_who_always_calls_is_always_right() -> None:
    problems = make_problems("calculator", 20, 0, {2: 1, 3: 1})
    always = manner("calculator", CAREFUL, call=1.0, check=0.3)
    calling = [written(problem, seed, always) for seed, problem in enumerate(problems)]
    assert right([text.rpartition(ASSISTANT)[2] for text in calling], problems) == 1
    assert sum(text.count("<tool_call>") for text in calling) > sum(len(problem.numbers) - 1 for problem in problems)
    assert "<tool_call>" not in "".join(written(problem, 0, manner("calculator", CAREFUL)) for problem in problems)


def test_trl_understands_the_calls(tokenizer: PreTrainedTokenizerFast) -> None:
    assert supports_tool_calling(tokenizer)
    assert is_chat_template_prefix_preserving(tokenizer)
    for problem in make_problems("calculator", 5, 0, {3: 1}):
        text = written(problem, 0, manner("calculator", CAREFUL, call=0.7))
        chat: list[dict[str, Any]] = [{"role": "user", "content": problem.question}]
        for turn in (text + END).split(USER):
            answer, _, reply = turn.rpartition(ASSISTANT)
            if answer:
                result = answer.removeprefix("<tool_response>").removesuffix(f"</tool_response>{END}")
                chat.append({"role": "tool", "name": "calculator", "content": result})
            prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            ids = tokenizer(reply).input_ids
            chat.append(parse_response(tokenizer, ids, prefix=prompt, tools=[calculator]))
        whole = tokenizer.apply_chat_template(chat, tokenize=False)
        expected = f"{USER}{problem.question}{END}{ASSISTANT}{text}{END}"
        assert whole == expected.replace(": <tool_call>", ":<tool_call>")  # the parser strips contents
        calls = [call["function"] for message in chat for call in message.get("tool_calls") or []]
        assert calls
        assert all(call["name"] == "calculator" and calculator(**call["arguments"]) for call in calls)


def test_neither_results_of_calls_nor_given_results_are_learned() -> None:
    (problem,) = make_problems("calculator", 1, 0, {3: 1})
    rng = random.Random(0)
    calls = solution(problem, rng, [manner("calculator", CAREFUL, call=1.0)])
    assert not any("<tool_response>" in text for text, learned in calls if learned)
    given = solution(problem, rng, MANNERS["calculator plain"])
    assert [text for text, learned in given if not learned][-1] == f"={problem.answer}\n"
    assert "=" not in "".join(text for text, learned in given if learned)
