"""Divide problems among ranks. A problem always goes to the same rank, because that rank holds its history."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from das import ranks
from das.trl.lag import indexes_of_rollouts


class PlacedSampler(Sampler[int]):
    """Samples problems in TRL's shuffled order, divided so that problem i always goes to rank i mod `ranks`.

    In every epoch TRL draws one permutation of all problems. Each rank takes its problems in that order, and a step
    takes equally many from each rank. The rows of a step are sorted by rank, because accelerate gives each rank one
    contiguous part of them. Problems that do not fill a step are left out, as in TRL. With one rank the order is TRL's.
    """

    def __init__(self, order: RepeatSampler, ranks: int):
        """order: TRL's sampler, which decides the order of the problems. ranks: number of training processes. Raises
        ValueError if the problems of a step cannot be divided equally among them."""
        self.order = order
        self.ranks = ranks
        self.share, rest = divmod(order.batch_size, ranks)  # problems of each rank in a step
        if rest or not self.share:
            raise ValueError(f"{order.batch_size} problems a step cannot be shared out equally among {ranks} processes")

    def __iter__(self) -> Iterator[int]:
        order = self.order
        indexes = torch.randperm(order.num_samples, generator=order.generator).tolist()
        shards = [[i for i in indexes if i % self.ranks == rank] for rank in range(self.ranks)]
        for start in range(0, min(map(len, shards)) - self.share + 1, self.share):
            step = [i for shard in shards for i in shard[start : start + self.share]]
            for _ in range(order.repeat_count):
                for index in step:
                    for _ in range(order.mini_repeat_count):
                        yield index

    def __len__(self) -> int:
        """The number of rows of data in an epoch, over all ranks."""
        return len(self.order)


def indexes_of_steps(trainer: GRPOTrainer) -> Iterator[list[int]]:
    """Yield the indexes of this rank's rows of each training step, from the first step on, as TRL's dataloader draws
    them."""
    sampler = GRPOTrainer._get_train_sampler(trainer)
    sampler.repeat_count = 1  # TRL repeats the rows for each of a step's micro-batches
    size = trainer.args.generation_batch_size
    own = size // ranks.count()
    steps = indexes_of_rollouts(PlacedSampler(sampler, ranks.count()), size)
    return (indexes[ranks.rank() * own :][:own] for indexes in steps)
