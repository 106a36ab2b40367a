"""Makespan weights: the weight of a live request is its chance of being the last to finish.

The number of remaining passes of a request is its remaining tokens (das.budget.remaining) divided by its tokens per
pass. The rollout takes as many passes as its slowest request. So if request i needs one pass less, the rollout is
expected to need P(i is last) passes less.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from das.budget.policies import LiveRequest
from das.budget.remaining import RemainingLength

Array = NDArray[np.float64]

POINTS = 24  # points at which distributions of remaining passes are evaluated, evenly spaced in the logarithm
PRIOR_PASSES = 4.0  # weight of the batch's mean tokens per pass in a request's estimate, as a number of passes


def speeds(live: Sequence[LiveRequest]) -> Array:
    """Returns tokens per pass of each request [R]. A request with few passes gets a value close to the batch's mean."""
    generated = np.array([request.generated for request in live], np.float64)
    passes = np.array([request.passes for request in live], np.float64)
    typical = max(1.0, generated.sum() / max(1.0, passes.sum()))
    return (generated + PRIOR_PASSES * typical) / (passes + PRIOR_PASSES)


def chances_of_being_last(lengths: RemainingLength, live: Sequence[LiveRequest]) -> Array:
    """Returns P(request finishes last) for each of `live` [R]. The sum is 1."""
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
        ended[rows] = 1 - lengths.beyond(problem, generated, tokens[rows])
    ended[tokens >= room[:, None] * (1 - 1e-9)] = 1.0  # the request ends there, because of max_tokens
    ends_here = np.diff(ended, axis=1)
    log_ended = np.log(np.maximum((ended[:, 1:] + ended[:, :-1]) / 2, 1e-9))
    others_ended = np.exp(log_ended.sum(axis=0) - log_ended)
    last = (ends_here * others_ended).sum(axis=1)
    total = last.sum()
    return last / total if total > 0 else np.full(len(live), 1 / len(live))
