"""Train each step on the groups that are done in time, and put the others aside (`trainer.partial`,
`trainer.partial_tokens`)."""

import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from das import ranks
from das.engine.rollouts.rollout import Rollout
from das.trl.lag import indexes_of_steps
from das.trl.step_rollouts import Rows, StepRollouts
from experiments.training.groups import Group, Verified, begun, divide, load_groups, save_groups, verified
from experiments.training.merge import merged, part
from experiments.training.step_row import of_chosen


class PartialRollouts(StepRollouts):
    """Rolls out until enough groups are done, or up to a limit. The step trains on these groups (EnoughGroups)."""

    def __init__(self, trainer: Any, spare: int, tokens: int):
        """spare: how many groups of this rank roll out beside those on which a step trains. tokens: how many a step
        grants to each response, at most; 0: as many as it needs. At this limit a step trains on fewer groups."""
        super().__init__(trainer)
        self.spare = spare
        self.tokens = tokens
        self._whole: Rollout | None = None  # the rollout of all groups
        self._verified: list[Verified] = []  # the responses in it that had been put aside
        self._groups: list[Group] = []  # those that are put aside, in the order of the data
        self._drawn = 0  # how many groups were begun so far
        self._problems: Iterator[int] | None = None  # indexes of the problems of the groups that are not begun yet

    def rows(self, drawn: Rows) -> Rows:
        """Roll out until enough groups are done. Returns this rank's rows of the data set on which this step trains."""
        trainer = self.trainer
        siblings, step = trainer.num_generations, trainer.state.global_step
        wanted = trainer.args.generation_batch_size // siblings // ranks.count()
        pool = self._filled(wanted + self.spare)
        batches = trainer.args.steps_per_generation  # TRL divides the rows of a step into so many equal parts
        multiple = batches // math.gcd(batches, siblings)
        plan, enough = begun(pool, trainer.args.seed, wanted, siblings, self.tokens, multiple)
        rows = [trainer.train_dataset[group.index] for group in pool for _ in range(siblings)]
        whole = trainer.vllm_generation.submit(trainer, rows, step, plan).result()
        chosen, self._groups = divide(pool, whole.rollout, enough)
        self._whole, self._verified = whole.rollout, verified(pool, whole.rollout)
        places = [place * siblings + sibling for place in chosen for sibling in range(siblings)]
        self.taken = part(whole, places)
        return [rows[place] for place in places]

    def columns(self) -> dict[str, Any]:
        """See StepRollouts. Costs are those of all groups."""
        assert self.taken is not None
        assert self._whole is not None
        of_ranks = ranks.gather((self._whole, self.taken.rollout, self._verified, len(self._groups)))
        wholes, trained, verified_of_ranks, groups = zip(*of_ranks, strict=True)
        rollout, entries = merged(trained), [entry for entries in verified_of_ranks for entry in entries]
        return {
            **of_chosen(merged(wholes), rollout),
            "partial": {
                "groups": sum(groups),
                "trained_groups": len(rollout.responses) // self.trainer.num_generations,
                "trained_tokens": rollout.tokens,
                "old_tokens": sum(entry.old for entry in entries),
                "kept_tokens": sum(entry.kept for entry in entries),
                "verified": [[entry.steps, entry.old, entry.kept] for entry in entries],
            },
        }

    def save(self, folder: Path) -> None:
        """Write the groups that are put aside."""
        save_groups(folder, self._groups, self._drawn)

    def resume(self, folder: Path, step: int) -> None:
        """See StepRollouts."""
        self._groups, self._drawn = load_groups(folder)

    def _filled(self, size: int) -> list[Group]:
        """Return `size` groups: those that are put aside, and new ones behind them."""
        siblings = self.trainer.num_generations
        if self._problems is None:
            every = (index for indexes in indexes_of_steps(self.trainer) for index in indexes[::siblings])
            self._problems = islice(every, self._drawn, None)
        pool = list(self._groups)
        while len(pool) < size:
            pool.append(Group(self._drawn, next(self._problems), [[] for _ in range(siblings)]))
            self._drawn += 1
        return pool
