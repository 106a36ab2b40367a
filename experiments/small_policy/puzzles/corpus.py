"""Warm-start data of the policy that works on puzzles: three phases of texts.

``drill`` teaches to add. ``plain`` teaches to work without slips; its searches find the right numbers more often than
chance allows, because the policy must see many right attempts before it recognizes one. ``habits`` teaches the final
texts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedTokenizerFast

from experiments.small_policy.corpus import drills, encode_solutions, phase_batches
from experiments.small_policy.puzzles import search
from experiments.small_policy.puzzles.habits import DEFAULT_HABITS, Habits
from experiments.small_policy.puzzles.problems import DEFAULT_KINDS, make_puzzles, worked_solution
from experiments.small_policy.tokenizer import train_tokenizer

_PUZZLES = 3000
_TOKENIZER_TEXTS = 1000


@dataclass(frozen=True)
class PuzzleCorpus:
    """Sizes of the phases, and the kinds of texts.

    drill_steps: optimizer steps of the phase ``drill``. drill_tokens: padded tokens of each of these steps. The other
    phases have the same two sizes. kinds: kind of puzzle -> relative frequency. habits: how solutions are written.
    """

    drill_steps: int = 80
    plain_steps: int = 200
    habits_steps: int = 380
    drill_tokens: int = 1024
    plain_tokens: int = 2048
    habits_tokens: int = 3072
    kinds: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_KINDS))
    habits: Habits = DEFAULT_HABITS

    @property
    def steps(self) -> int:
        """Optimizer steps of all phases."""
        return self.drill_steps + self.plain_steps + self.habits_steps

    def tokenizer(self, seed: int) -> PreTrainedTokenizerFast:
        """Train the tokenizer. Every number up to 99 is one token, so that the policy soon copies and compares them."""
        numbers = " ".join(map(str, range(100)))
        texts = [text for pair in self._solutions(_TOKENIZER_TEXTS, seed, plain=False) for text in (*pair, numbers)]
        return train_tokenizer(texts, vocab_size=512, digits=2)

    def batches(self, seed: int, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield one (ids, labels) per optimizer step, both [batch, time], phase after phase."""
        # Few texts have fewer tokens than these divisors, so there are enough of them for all steps of a phase.
        drilled = drills(self.drill_steps * self.drill_tokens // 50, seed, tokenizer, _draw_sum)
        plain = self._solutions(self.plain_steps * self.plain_tokens // 70, seed, plain=True)
        habits = self._solutions(self.habits_steps * self.habits_tokens // 100, seed + 1, plain=False)
        phases = (
            (drilled, self.drill_steps, self.drill_tokens),
            (encode_solutions(plain, tokenizer), self.plain_steps, self.plain_tokens),
            (encode_solutions(habits, tokenizer), self.habits_steps, self.habits_tokens),
        )
        return phase_batches(phases, seed, tokenizer.pad_token_id)

    def _solutions(self, count: int, seed: int, plain: bool) -> list[tuple[str, str]]:
        """Return ``count`` (question, solution) pairs. If there are fewer puzzles, a puzzle has several solutions."""
        rng = random.Random(f"solutions/{seed}")
        puzzles = itertools.cycle(make_puzzles(min(count, _PUZZLES), seed, self.kinds))
        return [
            (puzzle.question, worked_solution(puzzle, rng, self.habits, plain))
            for puzzle in itertools.islice(puzzles, count)
        ]


def _draw_sum(rng: random.Random) -> tuple[str, str]:
    """Draw a sum. Returns its text up to the equals sign, and its result. Often the first number may be as large as a
    sum of two numbers, because puzzles add a third number to such a sum."""
    largest = 2 * search.LARGEST if rng.random() < 0.4 else search.LARGEST
    first, second = rng.randint(1, largest), rng.randint(1, search.LARGEST)
    return f"{first}+{second}=", f"{first + second}"
