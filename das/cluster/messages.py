"""Messages between a trainer and its engines: plain data, small to send. This module needs neither vLLM nor Ray."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from das.cluster.dispatcher import QueuedRequest
from das.engine.rollouts.rollout import RolloutRequest


class ClusterError(RuntimeError):
    """The engines cannot continue. A one-line message says why, and what to change."""


@dataclass(frozen=True)
class EngineRequest:
    """One response to be generated. index: the response's place in the rollout. prompt: token ids."""

    index: int
    prompt: Sequence[int]
    problem: str
    seed: int


def requests_of(rollout: RolloutRequest) -> list[EngineRequest]:
    """Returns the requests of a rollout, in the order of its prompts."""
    prompts = [prompt["prompt_token_ids"] for prompt in rollout.prompts]
    return [
        EngineRequest(index, list(prompt), problem, seed)
        for index, (prompt, problem, seed) in enumerate(zip(prompts, rollout.problems, rollout.seeds, strict=True))
    ]


def predicted(request: RolloutRequest) -> list[QueuedRequest]:
    """Returns the requests for the dispatcher. Siblings are expected to have evenly spaced quantiles of their problem's
    lengths. Without a schedule all lengths are expected to be equal, which keeps the order of the requests.
    """
    siblings = Counter(request.problems)
    quantiles: dict[str, Iterator[float]] = {}
    for problem, count in siblings.items():
        if request.schedule is None:
            quantiles[problem] = iter([0.0] * count)
        else:
            shares = (np.arange(count)[::-1] + 0.5) / count
            quantiles[problem] = iter(request.schedule.lengths.quantiles(problem, shares).tolist())
    return [QueuedRequest(index, problem, next(quantiles[problem])) for index, problem in enumerate(request.problems)]
