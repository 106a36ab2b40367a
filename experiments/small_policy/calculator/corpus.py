"""Warm-start data of the policy that may call a calculator: texts on which it is trained first, in two phases.

``copy`` teaches to find the numbers of a step in the text before it, in texts that hold little else. ``habits`` teaches
the conversations, with calls and their results.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from experiments.small_policy.calculator.chat import CHAT_TEMPLATE, RESPONSE_TEMPLATE
from experiments.small_policy.calculator.problems import (
    DEFAULT_HABITS,
    LARGEST,
    Habits,
    make_sums,
    worked_conversation,
    worked_lines,
)
from experiments.small_policy.chains import ChainProblem
from experiments.small_policy.corpus import IGNORED, Example, phase_batches
from experiments.small_policy.tokenizer import ASSISTANT, END, USER, train_tokenizer

_TOKENIZER_TEXTS = 500
_SHORTEST = 60  # few texts have fewer tokens
_LONG = {4: 1, 5: 1, 6: 1, 7: 1, 8: 1}  # number of steps -> relative frequency, in the phase `copy`


@dataclass(frozen=True)
class CalculatorCorpus:
    """Sizes of the phases, and the kinds of conversations.

    copy_steps: optimizer steps of the phase ``copy``. copy_tokens: padded tokens of each of these steps. The phase
    ``habits`` has the same two sizes. mix: number of steps of a problem -> relative frequency.
    """

    copy_steps: int = 100
    habits_steps: int = 80
    copy_tokens: int = 1536
    habits_tokens: int = 2048
    mix: Mapping[int, float] = field(default_factory=lambda: {2: 2, 3: 2, 4: 2, 5: 1})
    habits: Habits = DEFAULT_HABITS

    @property
    def steps(self) -> int:
        """Optimizer steps of both phases."""
        return self.copy_steps + self.habits_steps

    def tokenizer(self, seed: int) -> PreTrainedTokenizerFast:
        """Train the tokenizer. Every number up to LARGEST is one token, so that the policy soon copies it."""
        numbers = " ".join(map(str, range(LARGEST + 1)))
        blank = train_tokenizer([numbers], digits=2)
        blank.chat_template = CHAT_TEMPLATE
        texts = [
            blank.apply_chat_template(chat, tokenize=False) for chat in self._conversations(_TOKENIZER_TEXTS, seed)
        ]
        tokenizer = train_tokenizer([*texts, *[numbers] * 50], vocab_size=512, digits=2)
        tokenizer.chat_template = CHAT_TEMPLATE
        tokenizer.response_template = RESPONSE_TEMPLATE
        return tokenizer

    def batches(self, seed: int, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield one (ids, labels) per optimizer step, both [batch, time]."""
        problems = make_sums(self.copy_steps * self.copy_tokens // _SHORTEST, seed, _LONG)
        chats = self._conversations(self.habits_steps * self.habits_tokens // _SHORTEST, seed)
        phases = [
            ([encode_lines(problem, tokenizer) for problem in problems], self.copy_steps, self.copy_tokens),
            (encode_conversations(chats, tokenizer), self.habits_steps, self.habits_tokens),
        ]
        return phase_batches(phases, seed, tokenizer.pad_token_id)

    def _conversations(self, count: int, seed: int) -> list[list[dict[str, Any]]]:
        rng = random.Random(f"conversations/{seed}")
        return [worked_conversation(problem, rng, self.habits) for problem in make_sums(count, seed, self.mix)]


def encode_lines(problem: ChainProblem, tokenizer: PreTrainedTokenizerFast) -> Example:
    """Encode a question and its worked lines. The policy learns those parts of lines that it can copy from earlier
    text, but not the results."""
    ids: list[int] = tokenizer(f"{USER}{problem.question}{END}{ASSISTANT}").input_ids
    labels = [IGNORED] * len(ids)
    for copied, result in worked_lines(problem):
        learned, given = tokenizer([copied, result]).input_ids
        ids = [*ids, *learned, *given]
        labels += [*learned, *[IGNORED] * len(given)]
    return Example(ids, labels)


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
