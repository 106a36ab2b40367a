"""Where the time of a decode pass goes: task=force task.profile=true.

The parts of an engine in this process are timed one inside the other, and each is charged with its own time only, so
that all parts together are the whole rollout.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

# "engine" is what vLLM does between the others, in its front end and its core.
ENGINE = "engine"
PARTS = (
    "schedule",
    "prepare",
    "forward",
    "logits",
    "sampler",
    "bookkeeping",
    "drafter",
    "budget",
    "proposer",
    "update",
    ENGINE,
)


class PassProfile:
    """Times the parts of one engine. The engine must run in this process."""

    def __init__(self, llm: Any):
        self.seconds: dict[str, float] = defaultdict(float)  # by part
        self._inner: list[float] = []  # for each part that is running: the time of the parts inside it
        core = llm.llm_engine.engine_core.engine_core
        worker = llm.llm_engine.model_executor.driver_worker.worker
        self._runner = runner = worker.model_runner
        self._watch(llm.llm_engine, ENGINE, "step")
        self._watch(core.scheduler, "schedule", "schedule")
        self._watch(core.scheduler, "update", "update_from_output", "update_draft_token_ids")
        self._watch(worker, "prepare", "execute_model")
        self._watch(runner, "forward", "_model_forward")
        self._watch(runner.model, "logits", "compute_logits")
        self._watch(runner, "bookkeeping", "sample_tokens")
        self._watch(runner, "sampler", "_sample")
        self._watch(runner, "proposer", "propose_draft_token_ids")

    def watch_drafts(self) -> None:
        """Also time drafter and budget, if the engine now drafts by das."""
        draft_round = getattr(getattr(self._runner, "drafter", None), "draft_round", None)
        if draft_round is not None and not isinstance(draft_round.drafter, _Timed):
            draft_round.drafter = _Timed(self, draft_round.drafter, "drafter")
            draft_round.budget = _Timed(self, draft_round.budget, "budget")

    def take(self) -> dict[str, float]:
        """Seconds of each part since the last call."""
        taken = {part: self.seconds[part] for part in PARTS if self.seconds[part]}
        self.seconds.clear()
        return taken

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The function, with its own time charged to `part`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                self.seconds[part] += spent - self._inner.pop()
                if self._inner:
                    self._inner[-1] += spent

        return call

    def _watch(self, owner: Any, part: str, *names: str) -> None:
        for name in names:
            setattr(owner, name, self.timed(getattr(owner, name), part))


class _Timed:
    """Stands for an object whose classes have slots: calls of its methods are timed, all else is passed on."""

    def __init__(self, profile: PassProfile, inner: Any, part: str):
        vars(self).update(_profile=profile, _timed=inner, _part=part)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._timed, name)
        if not callable(found):
            return found
        timed = self._profile.timed(found, self._part)
        vars(self)[name] = timed  # the next call does not come here
        return timed

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._timed, name, value)
