"""The agent task: sums stay within their bounds; TRL understands the conversations."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast
from trl.chat_template_utils import is_chat_template_prefix_preserving, parse_response, supports_tool_calling

from experiments.small_policy.calculator.corpus import CalculatorCorpus, encode_conversations, encode_lines
from experiments.small_policy.calculator.problems import (
    DEFAULT_HABITS,
    LARGEST,
    make_sums,
    worked_conversation,
    worked_lines,
)
from experiments.small_policy.calculator.tool import calculator
from experiments.small_policy.corpus import IGNORED, LONGEST
from rewards.maths import accuracy_reward

MIX = {2: 1.0, 3: 1.0, 4: 1.0}
ALWAYS = replace(DEFAULT_HABITS, careful=1.0, call_careful=1.0)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return CalculatorCorpus().tokenizer(0)


def conversations(count: int, **habits: float) -> list[list[dict[str, Any]]]:
    rng = random.Random(0)
    return [worked_conversation(problem, rng, replace(ALWAYS, **habits)) for problem in make_sums(count, 0, MIX)]


def test_sums() -> None:
    for problem in make_sums(200, 0, MIX):
        value = problem.start
        for sign, number in problem.steps:
            value = value + number if sign == "+" else value - number
            assert 0 <= value <= LARGEST
        assert problem.answer == str(value)
    with pytest.raises(ValueError, match="too few distinct questions"):
        make_sums(2000, 0, {1: 1}, split="evaluation")


def test_the_calculator_calculates_and_refuses() -> None:
    results = [calculator(text) for text in ("12+7", "12-7", "7-12", "-5+2")]
    assert results == ["12+7=19", "12-7=5", "7-12=-5", "-5+2=-3"]
    for text in ("12*7", "1+2+3", "print(1)", "", "1 + 2", "9999999+1"):
        with pytest.raises(ValueError, match="two whole numbers"):
            calculator(text)


def test_who_always_calls_is_always_right() -> None:
    problems = make_sums(20, 0, MIX)
    chats = conversations(20)
    finals = [chat[-1]["content"] for chat in chats]
    assert accuracy_reward(finals, [problem.answer for problem in problems]) == [1.0] * 20
    roles = Counter(message["role"] for chat in chats for message in chat)
    assert roles["tool"] >= sum(len(problem.steps) for problem in problems)
    assert not any("tool_calls" in message for chat in conversations(20, call_careful=0.0) for message in chat)


def test_trl_understands_the_calls(tokenizer: PreTrainedTokenizerFast) -> None:
    assert supports_tool_calling(tokenizer)
    assert is_chat_template_prefix_preserving(tokenizer)
    for chat in conversations(5):
        for index, message in enumerate(chat):
            if message["role"] != "assistant":
                continue
            prompt = tokenizer.apply_chat_template(chat[:index], add_generation_prompt=True, return_dict=False)
            whole = tokenizer.apply_chat_template(chat[: index + 1], return_dict=False)
            assert whole[: len(prompt)] == prompt
            parsed = parse_response(tokenizer, whole[len(prompt) :], prefix=prompt, tools=[calculator])
            assert parsed.get("tool_calls") == message.get("tool_calls")
            assert parsed["content"].strip() == message["content"].strip()


def test_only_what_the_assistant_writes_is_learned(tokenizer: PreTrainedTokenizerFast) -> None:
    chats = conversations(20)
    for chat, example in zip(chats, encode_conversations(chats, tokenizer), strict=True):
        assert len(example.ids) == len(example.labels) <= LONGEST
        learned = tokenizer.decode([label for label in example.labels if label != IGNORED])
        assert learned.count("<|end|>") == sum(message["role"] == "assistant" for message in chat)
        assert "<tool_response>" not in learned
        assert "Start with" not in learned
        assert chat[-1]["content"] in learned


def test_the_phase_copy_learns_no_results(tokenizer: PreTrainedTokenizerFast) -> None:
    (problem,) = make_sums(1, 0, {3: 1})
    example = encode_lines(problem, tokenizer)
    learned = tokenizer.decode([label for label in example.labels if label != IGNORED])
    assert learned == "".join(copied for copied, _ in worked_lines(problem))
    assert f"={problem.answer}\nThe answer is" in tokenizer.decode(example.ids)


def test_numbers_are_one_token(tokenizer: PreTrainedTokenizerFast) -> None:
    assert {len(tokenizer(str(number)).input_ids) for number in range(LARGEST + 1)} == {1}
