"""The engines of a cluster (das/cluster), which belong to no rank.

Only the main rank talks to the engines. It rolls out the requests of all ranks, and hands each rank its responses.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from das import ranks
from das.cluster.cluster import Cluster
from das.cluster.messages import ClusterError
from das.cluster.weights import WeightsPart
from das.engine.rollouts.report import RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.errors import EngineError
from das.trl.merge import divided


class ClusterEngines:
    """A Cluster that the training ranks share. Implements das.trl.engines.engines.Engines. Gets copies of the weights.

    dtype: the type in which the engines compute.
    """

    def __init__(self, start: Callable[[], Cluster]):
        """start: starts the cluster; called on the main rank. Raises EngineError, on all ranks, if it fails."""
        self.cluster: Cluster  # on the main rank
        self.dtype = getattr(torch, ranks.from_main(lambda: self._start(start)))

    def _start(self, start: Callable[[], Cluster]) -> str:
        """Start the engines. Returns the name of the type in which they compute."""
        try:
            self.cluster = start()
        except ClusterError as error:
            raise EngineError(str(error)) from error
        dtype: str = next(iter(self.cluster.engines.call_all("dtype").values()))
        return dtype

    def load_weights(self, parts: Sequence[WeightsPart], check: Sequence[str]) -> str:
        """Load these weights into all engines. Returns, in words, which tensors did not arrive; empty if all did. Only
        the main rank may call this.

        check: names of tensors. After loading, each engine checks that its copies of these tensors equal the sent ones.
        """
        return self.cluster.engines.load_weights(list(parts), check)

    def probe(self, tokens: Sequence[int]) -> np.ndarray:
        """Returns the engines' log-probs, float32 [T - 1], of these tokens [T] after the first one."""
        logprobs: np.ndarray = ranks.from_main(lambda: self.cluster.probe(tokens))
        return logprobs

    def roll_out(self, request: RolloutRequest) -> tuple[list[Any], Rollout]:
        """Roll out the requests of all ranks, on the main rank. Each rank gets the responses to its own requests."""
        asked = ranks.gather((request.prompts, list(request.problems), list(request.seeds)))
        parts: list[tuple[list[Any], Rollout]] = []
        ranks.from_main(lambda: parts.extend(self._roll_out_for(request, asked)))
        start = time.thread_time()
        responses, rollout = ranks.scatter(parts)
        if rollout.report.cluster is not None:  # on the main rank
            tokens = sum(part.tokens for _, part in parts)
            rollout = rollout.handed_over(1e6 * (time.thread_time() - start) / tokens)
        return responses, rollout

    def _roll_out_for(
        self, request: RolloutRequest, asked: Sequence[tuple[Sequence[Any], list[str], list[int]]]
    ) -> list[tuple[list[Any], Rollout]]:
        """Returns the responses and the rollout of each rank. asked: prompts, problems and seeds of each rank."""
        prompts, problems, seeds = (list(chain.from_iterable(of_ranks)) for of_ranks in zip(*asked, strict=True))
        responses, rollout = self.cluster.roll_out(replace(request, prompts=prompts, problems=problems, seeds=seeds))
        own = divided(rollout, [len(prompts) for prompts, _, _ in asked])
        waiting = iter(responses)
        return [(list(islice(waiting, len(part.responses))), part) for part in own]

    def roll_out_turn(self, request: RolloutRequest, turn: int) -> tuple[list[Any], Rollout]:
        """See Engines. There is one rank only."""
        return self.cluster.roll_out_turn(request, turn)

    def end_turns(self, step: int, next_history_tick: int, evaluation: bool) -> RolloutReport:
        """See Engines. There is one rank only."""
        return self.cluster.end_turns(step, next_history_tick, evaluation)

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        """See Engines."""
        with self.cluster.evaluation() if ranks.is_main() else nullcontext():
            yield

    def save_history(self, path: Path) -> None:
        """See Engines."""
        if ranks.is_main():
            self.cluster.save_history(path)

    def save_state(self, folder: Path) -> None:
        """See Engines."""
        if ranks.is_main():
            self.cluster.save_state(folder)

    def load_state(self, folder: Path) -> None:
        """See Engines."""
        if ranks.is_main():
            self.cluster.load_state(folder)

    def stop(self) -> None:
        """Make a rollout that runs in another thread raise an error, so that `close` can be called."""
        if ranks.is_main():
            self.cluster.engines.stop()

    def close(self) -> None:
        """See Engines."""
        if ranks.is_main():
            self.cluster.close()
