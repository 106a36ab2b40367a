"""Run rollouts a fixed number of steps (`trainer.lag`) ahead of the training."""

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trl import GRPOTrainer

from das import ranks
from das.errors import EngineError
from das.trl.lag import FinishedRollout, done, indexes_of_rollouts, load_ahead, save_ahead
from experiments.training.placement import PlacedSampler

if TYPE_CHECKING:
    from experiments.training.trainer import SpeculativeGRPOTrainer


class RolloutsAhead:
    """Runs rollouts ahead. At the start of step n it hands new weights to the engine, submits rollout n + lag, and
    takes rollout n.

    So rollout n samples with the weights after max(0, n - lag) updates. Rows, seeds, history and the order of the
    rollouts are the same as in a training without lag. The last `lag` steps submit nothing.
    """

    def __init__(self, trainer: "SpeculativeGRPOTrainer", lag: int):
        self.trainer = trainer
        self.lag = lag
        self.taken: FinishedRollout | None = None  # the rollout on which this step trains
        self._submitted: deque[Future[FinishedRollout]] = deque()  # rollouts of the coming steps, in order
        self._rows: Iterator[list[Mapping[str, Any]]] | None = None  # rows of the rollouts that are not submitted yet

    def take(self, prompt_ids: list[list[int]]) -> FinishedRollout:
        """Submit the rollouts that are due, then wait for the rollout of this step and return it.

        prompt_ids: token ids of the prompts on which TRL trains. Raises the rollout's error, and EngineError if the
        rollout has other prompts.
        """
        step = self.trainer.state.global_step
        if self._rows is None:
            self._rows = self._rows_from(step)
        last = min(step + self.lag, self.trainer.state.max_steps - 1)
        for number in range(step + len(self._submitted), last + 1):
            self._submit(number, next(self._rows))
        taken = self.taken = self._submitted.popleft().result()
        if taken.rollout.step != step or taken.prompts != prompt_ids:
            raise EngineError(
                f"step {step} trains on other rows than rollout {taken.rollout.step} has: trainer.lag needs TRL's own "
                "order of the data"
            )
        return taken

    def resume(self, folder: Path, step: int) -> None:
        """Load the submitted rollouts from the checkpoint of `step` in this folder."""
        ahead = load_ahead(folder)
        self._submitted = deque(map(done, ahead))
        self._rows = self._rows_from(step + len(ahead))

    def wait(self) -> None:
        """Wait until all submitted rollouts are finished. Raises the error of a rollout."""
        for future in self._submitted:
            future.result()

    def save(self, folder: Path) -> None:
        """Write the rollouts that were submitted but not taken yet into the folder of a checkpoint."""
        save_ahead(folder, [future.result() for future in self._submitted])

    def _rows_from(self, number: int) -> Iterator[list[Mapping[str, Any]]]:
        """Yield the rows of the data set for rollout `number`, then for each later rollout. TRL's dataloader will give
        the same rows to the steps that train on these rollouts."""
        rows = self.trainer.train_dataset
        return ([rows[i] for i in taken] for taken in islice(indexes_of_steps(self.trainer), number, None))

    def _submit(self, number: int, rows: list[Mapping[str, Any]]) -> None:
        """Submit rollout `number`. It samples with the weights that the trainer has now."""
        trainer = self.trainer
        prompts = trainer._tokenize_prompts(copy.deepcopy([row["prompt"] for row in rows]))[0]
        step = trainer.state.global_step
        new_weights = trainer._last_loaded_step != step  # TRL's: the step at which the engine got its weights
        trainer._last_loaded_step = step
        self._submitted.append(trainer.vllm_generation.submit(trainer, rows, prompts, number, new_weights))


def indexes_of_steps(trainer: GRPOTrainer) -> Iterator[list[int]]:
    """Yield the indexes of this rank's rows of each training step, from the first step on, as TRL's dataloader draws
    them."""
    sampler = GRPOTrainer._get_train_sampler(trainer)
    sampler.repeat_count = 1  # TRL repeats the rows for each of a step's micro-batches
    size = trainer.args.generation_batch_size
    own = size // ranks.count()
    steps = indexes_of_rollouts(PlacedSampler(sampler, ranks.count()), size)
    return (indexes[ranks.rank() * own :][:own] for indexes in steps)
