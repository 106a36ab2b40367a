"""Two manners of writing a solution, a careful one and a quick one, with their slips, patience and wording.

The opening line of a solution names its manner, and the wording of the other lines repeats it. A careful solution has
few slips, checks what it finds and searches on until it is right. A quick solution has many slips and soon gives up
with a guess. Reinforcement learning can therefore raise the reward with longer solutions, not with short ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Manner:
    """A manner of writing a solution: the probability of each decision that the writer makes.

    slip: a written result is off by one. give_up: after a failed attempt, the search ends with a guess. check: an
    attempt that seems right is worked out a second time, without slips. detour: after an attempt, a remark and the
    numbers of the question follow. lucky: the right attempt replaces the random one.
    """

    slip: float
    give_up: float
    check: float
    detour: float
    lucky: float = 0.0


@dataclass(frozen=True)
class Habits:
    """The careful and the quick manner of writing a solution, and the share of solutions that are careful.

    plain: takes the place of both manners in the early texts, which have no slips and no guesses.
    """

    careful_share: float = 0.35
    careful: Manner = Manner(slip=0.01, give_up=0.005, check=0.5, detour=0.1)
    quick: Manner = Manner(slip=0.15, give_up=0.08, check=0.05, detour=0.08)
    plain: Manner = Manner(slip=0.0, give_up=0.0, check=0.2, detour=0.1, lucky=0.35)


DEFAULT_HABITS = Habits()
MAX_ATTEMPTS = 60  # the most attempts of a search; this keeps nearly all solutions within 1,000 tokens

_OPENINGS = {
    True: ("Let me be careful.\n", "I will take my time.\n", "Slowly, one step after the other.\n"),
    False: ("I will be quick.\n", "This looks easy.\n", "Fast now.\n"),
}
_DETOURS = ("Hmm.\n", "Let me think.\n", "What else?\n", "Still no luck.\n", "I go on.\n")


@dataclass
class Writer:
    """Collects the text of one solution.

    careful: write in the words of the careful manner, otherwise in those of the quick one. manner: the probabilities.
    """

    rng: random.Random
    careful: bool
    manner: Manner
    text: str = ""

    def open(self) -> None:
        """Write the opening line. It shows whether the solution is written carefully or quickly."""
        self.text += self.rng.choice(_OPENINGS[self.careful])

    def happens(self, probability: float) -> bool:
        """Draw one decision of the writer. Returns True with this probability."""
        return self.rng.random() < probability

    def say(self, careful: Sequence[str], quick: Sequence[str], **values: object) -> None:
        """Write one of several wordings, with `values` filled in. Each wording is half as frequent as the one before
        it.

        careful, quick: the wordings of each manner, of which only those of the writer's manner are used.
        """
        wordings = careful if self.careful else quick
        weights = [2.0**-index for index in range(len(wordings))]
        self.text += self.rng.choices(wordings, weights)[0].format(**values)

    def slipped(self, result: int) -> int:
        """Return the result, or a result that is off by one, with the probability of a slip."""
        if self.happens(self.manner.slip):
            return max(0, result + self.rng.choice((-1, 1)))
        return result

    def judge(self, found: bool) -> None:
        """Write that the last result is the wanted one (`found`), or that it is not."""
        if found:
            self.say((", yes.\n", ". That is it.\n"), (", yes!\n", "!\n"))
        else:
            self.say((", no.\n", ". Not yet.\n"), (" no\n", "\n"))

    def guess(self) -> None:
        """Write that the answer is a guess."""
        self.say(("I give up.\n",), ("Enough, I guess.\n", "No idea, I guess.\n"))

    def remark(self) -> None:
        """Write a remark that does not help to solve the puzzle."""
        self.text += self.rng.choice(_DETOURS)

    def box(self, answer: str) -> None:
        """End the solution with its answer."""
        self.say(
            ("The answer is \\boxed{{{answer}}}.", "So I get \\boxed{{{answer}}}."),
            ("It is \\boxed{{{answer}}}.", "Done: \\boxed{{{answer}}}."),
            answer=answer,
        )
