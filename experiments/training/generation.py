"""The generation backend of experiments: it can have an engine of vLLM as it comes, emits recordings, and evaluates the
policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.trl.determinism import random_states_kept
from das.trl.engines.in_process import DasEngine
from das.trl.generation import SpeculativeGeneration
from das.weights.weight_check import WeightSample
from experiments.training.engines import RecordedEngine, RecordedStockEngine, Recording, build_in_process, save_history


class HarnessGeneration(SpeculativeGeneration):
    """See SpeculativeGeneration."""

    def __init__(self, *args: Any, recording: Recording | None = None, **kwargs: Any):
        """recording: the responses that the engine emits; None: it samples."""
        self.recording = recording
        self.evaluation_sample = WeightSample(kwargs["engine"].weight_check_every)  # for the syncs before evaluations
        super().__init__(*args, **kwargs)

    def build_engine(self, **overrides: Any) -> DasEngine:
        """Build an engine of das, or stock as the settings say."""
        engine = build_in_process(self.engine, trained=True, **overrides)
        if self.recording is None:
            return engine
        emitting = (RecordedEngine if self.engine.row.keyed else RecordedStockEngine)(engine.llm)
        emitting.recording = self.recording
        return emitting

    def save_history(self, path: Path) -> None:
        """Write what the drafter remembers, once all submitted rollouts are finished."""
        self.engines.submit(partial(save_history, self.engines, path)).result()

    def evaluate(self, request: RolloutRequest) -> Rollout:
        """Roll out `request` with the trainer's current weights, once all submitted rollouts are finished. The
        training's results do not change.

        Its requests draft from the history and from each other, and join no history. The training pushes its weights
        anew before its next rollout, which empties the prefix cache. The training's seeds depend on no state, and
        random states are put back. Raises WeightSyncError like `sync_weights`.
        """
        return self.engines.submit(partial(self._evaluate, request, self.copied_weights())).result()

    def _evaluate(self, request: RolloutRequest, copies: Any) -> Rollout:
        kept = self.weight_sample, self.sync
        self.weight_sample = self.evaluation_sample
        try:
            with random_states_kept():
                self._load(copies, request.step)
                with self._awake():
                    _, rollout = self.engines.roll_out(request)
        finally:
            self.weight_sample, self.sync = kept
            self._held = None
        return rollout

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Inside the `with` block, an engine that sleeps between rollouts can roll out. TRL wakes the engine only for
        TRL's own rollouts."""
        if not self.enable_sleep_mode:
            yield
            return
        self.llm.wake_up(tags=["kv_cache"])
        try:
            yield
        finally:
            self.llm.sleep(level=2)
            self._llm_weights_sleeping = True
