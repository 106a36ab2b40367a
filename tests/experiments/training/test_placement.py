"""A problem is always answered on the same rank. With one rank, the order is TRL's."""

from typing import Any

import pytest
from trl.trainer.utils import RepeatSampler

from experiments.training.placement import PlacedSampler

SIBLINGS, REPEATS = 4, 2


def trl(problems: int, problems_per_step: int) -> RepeatSampler:
    numbers: Any = list(range(problems))
    return RepeatSampler(numbers, SIBLINGS, problems_per_step, REPEATS, shuffle=True, seed=3)


def test_one_rank_has_the_order_of_trl() -> None:
    ours, theirs = PlacedSampler(trl(11, 4), ranks=1), trl(11, 4)
    for _ in range(5):
        assert list(ours) == list(theirs)


@pytest.mark.parametrize(("problems", "per_step", "ranks"), [(11, 4, 2), (1209, 128, 8), (32, 32, 16), (7, 3, 3)])
def test_a_problem_stays_on_its_rank(problems: int, per_step: int, ranks: int) -> None:
    sampler = PlacedSampler(trl(problems, per_step), ranks)
    rows = per_step * SIBLINGS
    home: dict[int, int] = {}
    orders = set()
    for _ in range(6):
        epoch = list(sampler)
        assert len(epoch) == len(sampler) == problems // per_step * rows * REPEATS
        orders.add(tuple(epoch))
        asked = []
        for first in range(0, len(epoch), rows * REPEATS):
            step = epoch[first : first + rows]
            assert epoch[first + rows : first + 2 * rows] == step
            groups = [step[i : i + SIBLINGS] for i in range(0, rows, SIBLINGS)]
            assert all(len(set(group)) == 1 for group in groups)
            asked += [group[0] for group in groups]
            for place, group in enumerate(groups):
                rank = place // (
                    per_step // ranks
                )  # accelerate gives each rank an equal share of a step's rows, in order
                assert home.setdefault(group[0], rank) == rank
        assert len(set(asked)) == len(asked)
    assert len(orders) > 3  # each epoch is shuffled anew
    assert len(home) >= problems * 0.9  # and hardly any problem is left out every time


def test_steps_that_cannot_be_shared_out_are_refused() -> None:
    for ranks in (3, 8):
        with pytest.raises(ValueError, match="cannot be shared out equally"):
            PlacedSampler(trl(11, 4), ranks)
