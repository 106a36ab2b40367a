"""The policy's tokenizer: round trips, numbers digit by digit, chat template."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from experiments.policies.problems import make_problems
from experiments.policies.solutions import MANNERS, solution
from experiments.policies.train import train_tokenizer

PROBLEMS = make_problems("arithmetic", 200, 0, {2: 1, 3: 2, 8: 1})
TEXTS = [p.question for p in PROBLEMS] + [solution(p, random.Random(0), MANNERS["arithmetic"]) for p in PROBLEMS]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS)


@settings(max_examples=100)
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_round_trips(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_numbers_are_spelled_digit_by_digit(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.tokenize("12+3=15") == ["1", "2", "+", "3", "=", "1", "5"]


def test_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    user = {"role": "user", "content": "Start with 2"}
    prompt = tokenizer.apply_chat_template([user], add_generation_prompt=True, tokenize=False)
    assert prompt == "<|user|>Start with 2<|end|><|assistant|>"
    conversation = tokenizer.apply_chat_template([user, {"role": "assistant", "content": "Yes."}], tokenize=False)
    assert conversation == prompt + "Yes.<|end|>"
    assert tokenizer(conversation).input_ids[-1] == tokenizer.eos_token_id
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
