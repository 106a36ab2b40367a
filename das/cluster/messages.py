"""Messages between a trainer and its engines: plain data, small to send. This module needs neither vLLM nor Ray."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from das.cluster.dispatcher import QueuedRequest
from das.engine.rollouts.report import RequestCost
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


@dataclass(frozen=True)
class Response:
    """A finished request. Equal requests get equal responses on every engine, except for `cost`."""

    index: int
    tokens: np.ndarray  # int32 [T], ids
    logprobs: np.ndarray | None  # float64 [T], log-probs of the tokens; None: the rollout did not ask for them
    finish_reason: str
    weights: int  # version of the weights that generated it
    cost: RequestCost

    def equals(self, other: "Response") -> bool:
        """Returns whether this and the other response are equal, bit for bit, and come from the same weights."""
        ours, theirs = (
            (each.tokens.tobytes(), b"" if each.logprobs is None else each.logprobs.tobytes(), each.finish_reason)
            for each in (self, other)
        )
        return ours == theirs and self.weights == other.weights


@dataclass(frozen=True)
class Poll:
    """An engine's answer to a poll: finished responses that the trainer has not acknowledged, and its progress."""

    finished: list[Response]
    live: int  # number of requests that the engine has not finished
    passes: int  # since the engine was built; if this stands still while requests are live, the engine hangs


@dataclass(frozen=True)
class WeightsPart:
    """Some tensors of the weights. tensors: name, type and shape of each. data: their bytes, one tensor after the
    other."""

    tensors: list[tuple[str, str, list[int]]]
    data: np.ndarray  # uint8
    drafter: bool = False  # True: weights of the drafter that is trained in the run; False: of the policy


def weights_checksum(parts: Iterable[WeightsPart]) -> str:
    """Returns the SHA-256 of the names, types, shapes, bytes and `drafter` flags of these parts."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(repr((part.drafter, part.tensors)).encode())
        sha.update(np.ascontiguousarray(part.data).data)
    return sha.hexdigest()


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


def require_equal_versions(theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raise ClusterError with a one-line message if an engine runs on other versions than this process."""
    for name in sorted({*ours, *theirs}):
        if ours.get(name) != theirs.get(name):
            raise ClusterError(
                f"an engine runs on another {name} than the trainer: {theirs.get(name, 'none')} there, "
                f"{ours.get(name, 'none')} here; all nodes need the same"
            )
