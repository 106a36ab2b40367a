"""Choose the problems of a set that are used: from the training or the held-out part, and how many.

Every choice depends only on a hash of the problem's id. So it is the same on every machine and for any order of the
rows, and adding problems does not change the choice for the others.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from experiments.problems.problem_set import Problem

PARTS = ("train", "eval")
_HASHES = 1 << 64


def share(key: str) -> float:
    """A number from 0 to 1, the same for the same text."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / _HASHES


def part_of(problems: Sequence[Problem], part: str, held_out: float) -> list[Problem]:
    """The held-out problems (part "eval") or all others (part "train").

    The choice does not depend on a seed, so no run trains on problems that another run holds out.
    """
    return [problem for problem in problems if (share(problem.problem_id) < held_out) == (part == "eval")]


def draw(
    problems: Sequence[Problem], count: int | None, seed: int, unfit: Callable[[Problem], str | None]
) -> tuple[list[Problem], Counter[str]]:
    """The first `count` problems (None for all) that are fit, in an order drawn from the seed.

    unfit: returns the reason why a problem cannot be used, or None. Also returns how many problems were passed over for
    each reason.
    """
    passed_over: Counter[str] = Counter()
    drawn: list[Problem] = []
    for problem in sorted(problems, key=lambda problem: (share(f"{seed}/{problem.problem_id}"), problem.problem_id)):
        if len(drawn) == count:
            break
        reason = unfit(problem)
        if reason is None:
            drawn.append(problem)
        else:
            passed_over[reason] += 1
    return drawn, passed_over
