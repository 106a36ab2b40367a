"""Warm-start data of the small policy: three phases of texts, and their batches as tensors.

A minute of CPU time allows for about 300 thousand tokens. So each phase teaches one thing, with texts that hold as much
of it as possible: ``drill`` teaches single steps, ``plain`` teaches to follow a chain without errors, and ``habits``
teaches to write the final texts, with slips and checks.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from transformers import PreTrainedTokenizerFast

from experiments.small_policy.arithmetic import (
    DEFAULT_HABITS,
    DEFAULT_MIX,
    LARGEST_VALUE,
    Habits,
    draw_step,
    equation,
    make_problems,
    worked_solution,
)
from experiments.small_policy.questions import Split
from experiments.small_policy.tokenizer import END, train_tokenizer

IGNORED = -100
LONGEST = 1024  # tokens of question and solution together; the policies have no more positions
_DRILL_LINES = 9
_TOKENIZER_TEXTS = 1000


class Example(NamedTuple):
    """Token ids of one text, and its labels: the id of a token that is learned, ``IGNORED`` for any other token."""

    ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class CorpusConfig:
    """Sizes of the phases, and the kinds of texts.

    drill_steps: optimizer steps of the phase ``drill``, and so on. drill_tokens: padded tokens of each step of the
    phase ``drill``. chain_tokens: the same for the other two phases. mix: number of steps of a problem -> relative
    frequency. plain_mix: the same for the phase ``plain``.
    """

    drill_steps: int = 120
    plain_steps: int = 110
    habits_steps: int = 160
    drill_tokens: int = 512
    chain_tokens: int = 1024
    plain_mix: Mapping[int, float] = field(default_factory=lambda: dict(DEFAULT_MIX))
    mix: Mapping[int, float] = field(default_factory=lambda: dict(DEFAULT_MIX))
    habits: Habits = DEFAULT_HABITS

    @property
    def steps(self) -> int:
        """Optimizer steps of all phases."""
        return self.drill_steps + self.plain_steps + self.habits_steps

    def tokenizer(self, seed: int) -> PreTrainedTokenizerFast:
        """Train the tokenizer. Every digit is a token."""
        pairs = write_solutions(_TOKENIZER_TEXTS, seed, self.mix, self.habits)
        return train_tokenizer(text for pair in pairs for text in pair)

    def batches(self, seed: int, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield one (ids, labels) per optimizer step, both [batch, time], phase after phase."""
        # No text has fewer tokens than these divisors, so there are enough examples for all steps of a phase.
        drilled = drills(self.drill_steps * self.drill_tokens // (6 * _DRILL_LINES), seed, tokenizer, _draw_equation)
        texts_per_step = self.chain_tokens // 64
        plain = write_solutions(self.plain_steps * texts_per_step, seed, self.plain_mix, self.plain_habits)
        habits = write_solutions(self.habits_steps * texts_per_step, seed + 1, self.mix, self.habits)
        phases = (
            (drilled, self.drill_steps, self.drill_tokens),
            (encode_solutions(plain, tokenizer), self.plain_steps, self.chain_tokens),
            (encode_solutions(habits, tokenizer), self.habits_steps, self.chain_tokens),
        )
        return phase_batches(phases, seed, tokenizer.pad_token_id)

    @property
    def plain_habits(self) -> Habits:
        """The habits of solutions in the phase ``plain``: careful, without slips and checks.

        The quick manner first appears in the phase ``habits``, together with its slips.
        """
        return replace(self.habits, careful=1.0, slip_careful=0.0, check_again=0.0)


def write_solutions(
    count: int, seed: int, mix: Mapping[int, float], habits: Habits, split: Split = "warm_start"
) -> list[tuple[str, str]]:
    """Write solutions. Returns ``count`` (question, solution) pairs of distinct problems."""
    rng = random.Random(f"solutions/{seed}")
    problems = make_problems(count, seed, mix, split)
    return [(problem.question, worked_solution(problem, rng, habits)) for problem in problems]


def encode_solutions(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> list[Example]:
    """Encode conversations. Only the solution and its end token are learned."""
    chats = [[{"role": "user", "content": question}] for question, _ in pairs]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    solutions = tokenizer([solution + END for _, solution in pairs]).input_ids
    return [
        Example(prompt + solution, [IGNORED] * len(prompt) + solution)
        for prompt, solution in zip(tokenizer(prompts).input_ids, solutions, strict=True)
    ]


def drills(
    count: int, seed: int, tokenizer: PreTrainedTokenizerFast, draw: Callable[[random.Random], tuple[str, str]]
) -> list[Example]:
    """Return ``count`` texts of unconnected equations. Only the results are learned.

    draw: draws an equation. It returns the text up to the equals sign, and the result.
    """
    rng = random.Random(f"drills/{seed}")
    parts: list[str] = []
    for _ in range(count * _DRILL_LINES):
        left, result = draw(rng)
        parts += [left, f"{result}\n"]
    return _masked(tokenizer(parts).input_ids, 2 * _DRILL_LINES)


def _draw_equation(rng: random.Random) -> tuple[str, str]:
    before = rng.randint(0, LARGEST_VALUE)
    return equation(before, draw_step(before, rng))


def _masked(parts: list[list[int]], parts_per_text: int) -> list[Example]:
    """Join parts to texts of `parts_per_text` parts each. Of every two parts the second is learned. parts: their token
    ids."""
    examples: list[Example] = []
    for first in range(0, len(parts), parts_per_text):
        example = Example([], [])
        for index in range(first, first + parts_per_text):
            example.ids.extend(parts[index])
            example.labels.extend(parts[index] if index % 2 else [IGNORED] * len(parts[index]))
        examples.append(example)
    return examples


def make_batches(examples: list[Example], tokens_per_step: int, rng: random.Random) -> list[list[Example]]:
    """Group examples of similar length into batches of at most ``tokens_per_step`` padded tokens, in random order."""
    batches: list[list[Example]] = [[]]
    for example in sorted(examples, key=lambda example: (len(example.ids), rng.random())):
        if batches[-1] and len(example.ids) * (len(batches[-1]) + 1) > tokens_per_step:
            batches.append([])
        batches[-1].append(example)
    rng.shuffle(batches)
    return batches


def phase_batches(
    phases: Iterable[tuple[list[Example], int, int]], seed: int, pad: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield one (ids, labels) per optimizer step, both [batch, time], phase after phase.

    phases: of each phase the examples, the optimizer steps and the padded tokens of a step. Examples of more than
    ``LONGEST`` tokens are left out.
    """
    rng = random.Random(f"batches/{seed}")
    for examples, steps, tokens in phases:
        short = [example for example in examples if len(example.ids) <= LONGEST]
        for batch in make_batches(short, tokens, rng)[:steps]:
            yield collate(batch, pad)


def collate(batch: list[Example], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return input ids and labels, both [batch, time], padded on the right.

    With causal attention no real position sees the padding on its right, so no attention mask is needed.
    """
    width = max(len(example.ids) for example in batch)
    ids = [example.ids + [pad] * (width - len(example.ids)) for example in batch]
    labels = [example.labels + [IGNORED] * (width - len(example.labels)) for example in batch]
    return torch.tensor(ids), torch.tensor(labels)
