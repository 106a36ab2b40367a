"""Warm-start data of the policy that may call a calculator: conversations with calls and their results."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from experiments.small_policy.calculator.chat import CHAT_TEMPLATE, RESPONSE_TEMPLATE
from experiments.small_policy.calculator.problems import DEFAULT_HABITS, LARGEST, Habits, make_sums, worked_conversation
from experiments.small_policy.corpus import IGNORED, Example, phase_batches
from experiments.small_policy.tokenizer import ASSISTANT, END, train_tokenizer

_TOKENIZER_TEXTS = 500
_SHORTEST = 60  # few conversations have fewer tokens


@dataclass(frozen=True)
class CalculatorCorpus:
    """Optimizer steps, padded tokens of a step, and the kinds of conversations."""

    steps: int = 150
    tokens: int = 2048
    mix: Mapping[int, float] = field(default_factory=lambda: {1: 1, 2: 2, 3: 2, 4: 1, 5: 1})
    habits: Habits = DEFAULT_HABITS

    def tokenizer(self, seed: int) -> PreTrainedTokenizerFast:
        """Train the tokenizer. Every number up to LARGEST is one token, so that the policy soon copies it."""
        numbers = " ".join(map(str, range(LARGEST + 1)))
        blank = train_tokenizer([numbers], digits=3)
        blank.chat_template = CHAT_TEMPLATE
        texts = [
            blank.apply_chat_template(chat, tokenize=False) for chat in self._conversations(_TOKENIZER_TEXTS, seed)
        ]
        tokenizer = train_tokenizer([*texts, *[numbers] * 50], vocab_size=640, digits=3)
        tokenizer.chat_template = CHAT_TEMPLATE
        tokenizer.response_template = RESPONSE_TEMPLATE
        return tokenizer

    def batches(self, seed: int, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield one (ids, labels) per optimizer step, both [batch, time]."""
        chats = self._conversations(self.steps * self.tokens // _SHORTEST, seed)
        phase = (encode_conversations(chats, tokenizer), self.steps, self.tokens)
        return phase_batches([phase], seed, tokenizer.pad_token_id)

    def _conversations(self, count: int, seed: int) -> list[list[dict[str, Any]]]:
        rng = random.Random(f"conversations/{seed}")
        return [worked_conversation(problem, rng, self.habits) for problem in make_sums(count, seed, self.mix)]


def encode_conversations(chats: list[list[dict[str, Any]]], tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Encode conversations. Only what the assistant writes is learned, its end tokens included."""
    assistant, end = tokenizer.convert_tokens_to_ids([ASSISTANT, END])
    examples = []
    for ids in tokenizer([tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]).input_ids:
        labels, learned = [], False
        for token in ids:
            labels.append(token if learned else IGNORED)
            learned = token == assistant or (learned and token != end)
        examples.append(Example(ids, labels))
    return examples
