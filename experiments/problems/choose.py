"""Choose which problems of a set are used: a number of problems from the training part or from the held-out part.

Whether and in which order a problem is chosen depends only on a hash of its id. So choices are the same on every
machine and for any order of the rows. If a set gets new problems, the old ones stay in their parts.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

from experiments.problems.problem_set import Problem

_HASHES = 1 << 64


def share(key: str) -> float:
    """Return a number from 0 to 1 that depends only on the text `key`: a hash of it."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / _HASHES


def part_of(problems: Sequence[Problem], part: str, held_out: float) -> list[Problem]:
    """Return the held-out problems (part "eval") or all others (part "train"). held_out: share of held-out problems.

    The choice does not depend on a seed, so no run trains on problems that another run holds out.
    """
    return [problem for problem in problems if (share(problem.problem_id) < held_out) == (part == "eval")]


def draw(
    problems: Sequence[Problem], count: int | None, seed: int, unfit: Callable[[Problem], str | None]
) -> tuple[list[Problem], Counter[str]]:
    """Return the first `count` usable problems (None: all), and how many were passed over for each reason.

    The seed decides the order of the problems. unfit: returns the reason why a problem cannot be used, or None.
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
