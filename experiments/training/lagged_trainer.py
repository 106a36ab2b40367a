"""A GRPO trainer whose rollouts run a fixed number of steps ahead of the training (`lag`)."""

import copy
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import Any

from trl import GRPOTrainer

from das.engine.rollouts.rollout import Rollout
from das.errors import EngineError
from das.trl.lag import FinishedRollout, Sync, done, indexes_of_rollouts, load_ahead, save_ahead
from experiments.training import checkpoint
from experiments.training.resumable_trainer import ResumableGRPOTrainer
from experiments.training.turns import Turns


class LaggedGRPOTrainer(ResumableGRPOTrainer):
    """At the start of step n it hands the weights over, submits rollout n + lag with them, and takes rollout n.

    So the rollout of step n has the weights after max(0, n - lag) updates. Rows, seeds, history and the order of
    rollouts are those of a training without lag. The last `lag` steps submit nothing. With lag 0 TRL's own code
    runs, unless the engine has a process of its own.
    """

    lag = 0
    ahead = False  # whether rollouts are submitted and taken; False: TRL's own code
    turns: Turns
    _last_loaded_step: int  # TRL's: the step of the weights that the engine has
    _exposed_s = 0.0  # of this step: how long the trainer stood still for its rollout
    _taken: FinishedRollout | None = None  # the rollout that this step trains on; None with lag 0
    _submitted: deque[Future[FinishedRollout]]  # of the steps from now on, in order
    _rows_ahead: Iterator[list[Mapping[str, Any]]] | None = None  # of the rollouts that were not submitted yet

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        """TRL asks for the responses of this step, and gets (token ids, log-probs of the sampled tokens)."""
        began, waited_s = time.perf_counter(), self.turns.waited_s
        if self.ahead and self.model.training:
            generated = self._submit_and_take(prompt_ids)
        else:
            generated = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        self._exposed_s += time.perf_counter() - began - (self.turns.waited_s - waited_s)
        return generated

    def _submit_and_take(self, prompt_ids: list[list[int]]) -> tuple[list[list[int]], list[list[float | None]]]:
        step = self.state.global_step
        if self._rows_ahead is None:
            self._rows_ahead = self._rows_from(step)
        last = min(step + self.lag, self.state.max_steps - 1)
        for number in range(step + len(self._submitted), last + 1):
            self._submit(number)
        taken = self._taken = self._submitted.popleft().result()
        if taken.rollout.step != step or taken.prompts != prompt_ids:
            raise EngineError(
                f"step {step} trains on other rows than rollout {taken.rollout.step} has: trainer.lag needs TRL's own "
                "order of the data"
            )
        self.turns.after_rollout()
        return taken.rollout.responses, taken.logprobs

    def _rows_from(self, number: int) -> Iterator[list[Mapping[str, Any]]]:
        """The rows of rollout `number` and of all that follow: those that TRL's dataloader will give to these steps."""
        sampler = GRPOTrainer._get_train_sampler(self)
        sampler.repeat_count = 1  # TRL repeats the rows for each of a step's micro-batches
        indexes = indexes_of_rollouts(sampler, self.args.generation_batch_size)
        return ([self.train_dataset[i] for i in taken] for taken in islice(indexes, number, None))

    def _submit(self, number: int) -> None:
        """Submit rollout `number`, with the weights as they are now."""
        assert self._rows_ahead is not None
        rows = next(self._rows_ahead)
        prompts = self._tokenize_prompts(copy.deepcopy([row["prompt"] for row in rows]))[0]
        step = self.state.global_step
        new_weights = self._last_loaded_step != step
        self._last_loaded_step = step
        self._submitted.append(self.vllm_generation.submit(self, rows, prompts, number, new_weights))

    def _trained_on(self) -> tuple[Rollout, Sync, int]:
        """The rollout of this step, how its weights had reached the engine, and how many updates they had seen."""
        if self._taken is not None:
            return self._taken.rollout, self._taken.sync, self._taken.weights
        generation = self.vllm_generation
        assert generation.last is not None
        return generation.last, generation.sync, generation.last.step

    def resume(self, step: int) -> None:
        """Continue training from the checkpoint of `step`, which must have been verified."""
        if self.ahead:
            ahead = load_ahead(checkpoint.step_folder(self.checkpoints.folder, step))
            self._submitted = deque(map(done, ahead))
            self._rows_ahead = self._rows_from(step + len(ahead))
        super().resume(step)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save once the submitted rollouts are finished."""
        for future in self._submitted:
            future.result()  # raises what the rollout raised
        super()._save_checkpoint(model, trial)

    def _save_rollouts(self, folder: Path) -> None:
        super()._save_rollouts(folder)
        save_ahead(folder, [future.result() for future in self._submitted])
