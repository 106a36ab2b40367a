"""Partial rollouts: a step trains on the groups that are done in time, and the others continue in the next step.

They continue on-policy: each request begins anew with its seed, so its noise at each position is the same, and the
tokens that it had are drafted (das/set_aside.py). The new weights verify them, so every token of a response is drawn by
the weights of the step that trains on it. Without drafts the tokens are generated again, and are the same.

Of several processes that train together, each has its own groups and puts its own aside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from das import ranks
from das.arrays import load_arrays, pack_strings, save_arrays, unpack_strings
from das.engine.rollouts.rollout import PUT_ASIDE, Rollout, request_seed
from das.trl.step_rollouts import Begun
from experiments.training.enough import EnoughGroups, generate_enough

STATE = "set_aside.npz"
KIND = "groups set aside 1"


@dataclass
class Group:
    """The responses to one problem, which roll out together until they are done."""

    number: int  # the group's place in the order of the data, counted from 0
    index: int  # of the problem's row in the data set
    tokens: list[list[int]]  # what each response had when the group was put aside
    progress: int = 0  # tokens granted to each response so far (EnoughGroups)
    steps: int = 0  # training steps in which the group has rolled out


@dataclass(frozen=True)
class Verified:
    """A response that was put aside, after a step has drafted its tokens."""

    steps: int  # training steps in which it had rolled out before
    old: int  # its tokens that the new weights have verified, up to the first that differed and from there on all
    kept: int  # those that the new weights drew again


def begun(
    pool: Sequence[Group], run_seed: int, wanted: int, siblings: int, tokens: int = 0, multiple: int = 1
) -> tuple[Begun, EnoughGroups]:
    """Describe the rollout of these groups, those of this rank, and choose when it is over. wanted: how many of them a
    step trains on. tokens, multiple: its limit (EnoughGroups).

    A response has the seed that it would have if nothing were put aside: that of its place in the order of the data.
    """
    first = ranks.rank() * wanted  # the place of this rank's first group in a step
    enough = EnoughGroups(wanted, siblings, [group.progress for group in pool], tokens, multiple)
    plan = Begun(
        [
            request_seed(run_seed, group.number // wanted, (first + group.number % wanted) * siblings + sibling)
            for group in pool
            for sibling in range(siblings)
        ],
        [tokens for group in pool for tokens in group.tokens],
        wanted,
        partial(generate_enough, enough=enough),
    )
    return plan, enough


def divide(pool: Sequence[Group], rollout: Rollout, enough: EnoughGroups) -> tuple[list[int], list[Group]]:
    """Divide the groups of this rank's rollout. Returns the places of those on which the step trains, in the order of
    the data, and the other groups, as they continue.

    TRL trains on equally many groups of each rank: as many as the rank has that chose the fewest. All ranks must call
    this function.
    """
    lengths = [len(response) for response in rollout.responses]
    chosen = enough.done(lengths, [reason != PUT_ASIDE for reason in rollout.finish_reasons])
    granted = enough.granted(chosen, lengths)
    chosen = chosen[: min(ranks.gather(len(chosen)))]
    others = []
    for place, group in enumerate(pool):
        if place not in chosen:
            found = rollout.responses[place * enough.siblings :][: enough.siblings]
            tokens = [longer(old, new) for old, new in zip(group.tokens, found, strict=True)]
            others.append(Group(group.number, group.index, tokens, group.progress + granted, group.steps + 1))
    return sorted(chosen), others


def verified(pool: Sequence[Group], rollout: Rollout) -> list[Verified]:
    """Returns an entry for each response of the rollout that had tokens from an earlier step."""
    olds = [(group.steps, old) for group in pool for old in group.tokens]
    entries = []
    for (steps, old), new, reason in zip(olds, rollout.responses, rollout.finish_reasons, strict=True):
        if old:
            kept = shared(old, new)
            interrupted = reason == PUT_ASIDE and kept == len(new)
            entries.append(Verified(steps, kept if interrupted else len(old), kept))
    return entries


def longer(old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Returns the tokens to draft next time: the new ones, or the old ones if these only go on where the new ones were
    interrupted."""
    return list(old if shared(old, new) == len(new) < len(old) else new)


def shared(old: Sequence[int], new: Sequence[int]) -> int:
    """Returns the number of first tokens in which two responses are equal."""
    return next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def save_groups(folder: Path, groups: Sequence[Group], drawn: int) -> None:
    """Write the groups that are put aside, for a checkpoint. drawn: how many groups were begun so far."""
    save_arrays(
        folder / STATE,
        {"kind": np.array(KIND), "drawn": np.array(drawn), "groups": pack_strings([vars(group) for group in groups])},
    )


def load_groups(folder: Path) -> tuple[list[Group], int]:
    """Read what `save_groups` wrote. Raises ValueError for a damaged file."""
    arrays = load_arrays(folder / STATE, KIND)
    return [Group(**group) for group in unpack_strings(arrays["groups"])], int(arrays["drawn"])
