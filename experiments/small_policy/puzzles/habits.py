"""The manners in which solutions are written, with their slips, their patience and their wording.

A solution is in one of two manners, which its opening line names and the wording of its lines repeats. The careful
manner slips rarely, checks what it finds and searches on until it is right. The quick manner slips often and soon
gives up with a guess. Reinforcement learning can therefore raise the reward by working longer, not by being short.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Manner:
    """Probabilities of the decisions in writing a solution.

    slip: a written result is off by one. give_up: after a failed attempt a search ends with a guess. check: an attempt
    that seems right is worked out again, without slips. detour: a remark follows an attempt, and the question's numbers
    once more. lucky: an attempt is the right one, whatever else it would have been.
    """

    slip: float
    give_up: float
    check: float
    detour: float
    lucky: float = 0.0


@dataclass(frozen=True)
class Habits:
    """Both manners, and the share of solutions in the careful one."""

    careful_share: float = 0.35
    careful: Manner = Manner(slip=0.01, give_up=0.005, check=0.5, detour=0.1)
    quick: Manner = Manner(slip=0.15, give_up=0.08, check=0.05, detour=0.08)
    plain: Manner = Manner(slip=0.0, give_up=0.0, check=0.2, detour=0.1, lucky=0.35)


DEFAULT_HABITS = Habits()
MAX_ATTEMPTS = 60  # of a search; keeps nearly all solutions within 1,000 tokens

_OPENINGS = {
    True: ("Let me be careful.\n", "I will take my time.\n", "Slowly, one step after the other.\n"),
    False: ("I will be quick.\n", "This looks easy.\n", "Fast now.\n"),
}
_DETOURS = ("Hmm.\n", "Let me think.\n", "What else?\n", "Still no luck.\n", "I go on.\n")


@dataclass
class Writer:
    """Collects the text of one solution. careful: the manner, in whose words it writes."""

    rng: random.Random
    careful: bool
    manner: Manner
    text: str = ""

    def open(self) -> None:
        """Write the opening line, which names the manner."""
        self.text += self.rng.choice(_OPENINGS[self.careful])

    def happens(self, probability: float) -> bool:
        """Draw one decision."""
        return self.rng.random() < probability

    def say(self, careful: Sequence[str], quick: Sequence[str], **values: object) -> None:
        """Write one of the manner's wordings, the first ones more often, with `values` in it."""
        wordings = careful if self.careful else quick
        weights = [2.0**-index for index in range(len(wordings))]
        self.text += self.rng.choices(wordings, weights)[0].format(**values)

    def slipped(self, result: int) -> int:
        """Return the result, or with the manner's probability one that is off by one."""
        if self.happens(self.manner.slip):
            return max(0, result + self.rng.choice((-1, 1)))
        return result

    def judge(self, found: bool) -> None:
        """Write whether the last result is the wanted one."""
        if found:
            self.say((", yes.\n", ". That is it.\n"), (", yes!\n", "!\n"))
        else:
            self.say((", no.\n", ". Not yet.\n"), (" no\n", "\n"))

    def guess(self) -> None:
        """Write that the answer is a guess."""
        self.say(("I give up.\n",), ("Enough, I guess.\n", "No idea, I guess.\n"))

    def remark(self) -> None:
        """Write a remark that leads nowhere."""
        self.text += self.rng.choice(_DETOURS)

    def box(self, answer: str) -> None:
        """End the solution with its answer."""
        self.say(
            ("The answer is \\boxed{{{answer}}}.", "So I get \\boxed{{{answer}}}."),
            ("It is \\boxed{{{answer}}}.", "Done: \\boxed{{{answer}}}."),
            answer=answer,
        )
