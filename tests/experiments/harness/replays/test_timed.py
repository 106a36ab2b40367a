"""A timed comparison: all arms do each rollout, another one begins each time, and other tokens end it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.harness.replays.forced_engines import ForcedRollout
from experiments.harness.replays.timed import OwnRollout, Timed, TimedEngines, Work
from experiments.run.errors import RunFailed
from experiments.simulate.workload import workload

OWN = [Work("w", {"step": step}, OwnRollout([], [], [], step, step)) for step in (1, 2, 3)]
FORCED = [Work("w", {"step": 1}, ForcedRollout(workload(["p"], [np.array([1])], 5), 2, 1, 1))]


class Answering(TimedEngines):
    """Engines that answer at once. answers: arm -> digest of its tokens, and whether they are the recorded ones."""

    def __init__(self, answers: dict[str, tuple[str, bool]]) -> None:
        super().__init__({}, "", {}, Path())
        self.answers, self._engine_of = answers, dict.fromkeys(answers, "")

    def roll_out(self, arm: str, work: Work) -> Timed:
        digest, equal = self.answers[arm]
        return Timed({"digest": digest}, {}, equal)


def done(works: list[Work], **answers: tuple[str, bool]) -> list[tuple[Any, str]]:
    return [(work.names["step"], arm) for work, arm, _ in Answering(answers).in_turns(works)]


def test_arms_take_turns_in_being_the_first() -> None:
    same = ("a", True)
    assert done(OWN, none=same, stock=same, das=same) == [
        (1, "none"), (1, "stock"), (1, "das"),
        (2, "stock"), (2, "das"), (2, "none"),
        (3, "das"), (3, "none"), (3, "stock"),
    ]  # fmt: skip


def test_other_tokens_are_one_line() -> None:
    with pytest.raises(RunFailed, match="das, w, step 1: other tokens than none"):
        done(OWN, none=("a", True), das=("b", True))
    with pytest.raises(RunFailed, match="stock, w, step 1: other tokens"):
        done(FORCED, none=("a", True), stock=("b", False))
    done(FORCED, none=("a", True), stock=("b", True))  # of recorded responses it emits the number of tokens alone
