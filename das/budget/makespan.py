"""Which request will decide the makespan? The chance of each live one to be the last to finish.

A request's passes to come are its tokens to come (das.budget.remaining) over the tokens a pass emits for it. The
rollout takes as many passes as its slowest request: one pass less for request i shortens it by P(i is last) passes.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from das.budget.policies import LiveRequest
from das.budget.remaining import RemainingLength

Array = NDArray[np.float64]

POINTS = 24  # at which passes to come are looked at, evenly in the logarithm
KNOWN = 4.0  # passes that the batch's tokens per pass counts for beside a request's own


def speeds(live: Sequence[LiveRequest]) -> Array:
    """Tokens a pass emits for each request, leaning on the batch while its own passes are few."""
    generated = np.array([request.generated for request in live], np.float64)
    passes = np.array([request.passes for request in live], np.float64)
    typical = max(1.0, generated.sum() / max(1.0, passes.sum()))
    return (generated + KNOWN * typical) / (passes + KNOWN)


def chances_of_being_last(lengths: RemainingLength, live: Sequence[LiveRequest]) -> Array:
    """P(request finishes last) for each of `live`; sums to 1."""
    if len(live) == 1:
        return np.ones(1)
    speed = speeds(live)
    room = np.array([max(1, request.max_tokens - request.generated) for request in live], np.float64)
    passes = np.concatenate([[0.0], np.geomspace(1.0, max(2.0, float((room / speed).max())), POINTS)])
    tokens = passes * speed[:, None]  # [R, points]
    ended = np.empty_like(tokens)
    rows_of: defaultdict[str, list[int]] = defaultdict(list)
    for row, request in enumerate(live):
        rows_of[request.problem].append(row)
    for problem, rows in rows_of.items():
        generated = np.array([live[row].generated for row in rows])
        ended[rows] = 1 - lengths.beyond_many(problem, generated, tokens[rows])
    ended[tokens >= room[:, None] * (1 - 1e-9)] = 1.0  # cut off there
    ends_here = np.diff(ended, axis=1)
    others = np.log(np.maximum((ended[:, 1:] + ended[:, :-1]) / 2, 1e-9))
    last = (ends_here * np.exp(others.sum(axis=0) - others)).sum(axis=1)
    total = last.sum()
    return last / total if total > 0 else np.full(len(live), 1 / len(live))
