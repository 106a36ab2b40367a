"""Groups that are put aside: how they are divided and kept, and two processes, each with its own engine and groups.

Trainings of one process are in test_equal_runs.py; that tokens are equal wherever a response was interrupted is in
tests/identity/.
"""

import shutil
from pathlib import Path

import pytest
from conftest import RANKS, RANKS_STEPS
from runs import LIMITED, outcome
from scripts import TWO_RANKS, run_script

from analysis import read
from analysis.metrics import timeless
from das import ranks
from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import PUT_ASIDE, Rollout, request_seed
from experiments.harness.resume import CHECKPOINTS
from experiments.training import checkpoint
from experiments.training.groups import (
    Group,
    Verified,
    begun,
    divide,
    load_groups,
    longer,
    save_groups,
    shared,
    verified,
)


def trained_by_two(folder: Path, *arguments: str) -> Path:
    run_script(*TWO_RANKS, "run.py", *arguments)
    return folder


@pytest.fixture(scope="module")
def two_processes(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each arm. Of 4 problems a step, 2 of each process, those are trained that are done within 16 tokens."""
    folder = tmp_path_factory.mktemp("two")
    limit = ["trainer.partial=2", "engine.max_num_seqs=12", *LIMITED[2:]]
    start = [*RANKS, *limit, "checkpoint.keep=9", f"policy.path={repetitive_policy}"]
    return {
        arm: trained_by_two(folder / arm, *start, f"arm={arm}", f"hydra.run.dir={folder / arm}")
        for arm in ("none", "das")
    }


@pytest.mark.slow
def test_drafts_change_no_bit_on_two_processes(two_processes: dict[str, Path]) -> None:
    none, das = (outcome(two_processes[arm]) for arm in ("none", "das"))
    assert das == none
    rows = read.metrics(two_processes["das"])
    assert {row["partial"]["groups"] + row["partial"]["trained_groups"] for row in rows} == {6}
    assert min(row["partial"]["trained_groups"] for row in rows) == 2
    assert len({len(response) for responses in das["tokens"] for response in responses}) > 5
    assert sum(row["partial"]["kept_tokens"] for row in rows) > 0
    responses = [response for row in rows for response in read.rollout(two_processes["das"], row["step"])]
    assert {response["rank"] for response in responses} == {0, 1}
    assert len({response["seed"] for response in responses}) == len(responses)
    homes = {(response["problem_id"], response["rank"]) for response in responses}
    assert len(homes) == len({problem for problem, _ in homes})


@pytest.mark.slow
@pytest.mark.nightly
def test_a_run_of_two_processes_is_resumed(two_processes: dict[str, Path], tmp_path: Path) -> None:
    whole, resumed = two_processes["das"], tmp_path / "resumed"
    shutil.copytree(whole, resumed)
    for step in range(3, RANKS_STEPS + 1):
        checkpoint.discard(checkpoint.step_folder(resumed / CHECKPOINTS, step))
    trained_by_two(resumed, f"resume={resumed}")
    assert outcome(resumed) == outcome(whole)
    assert timeless(read.metrics(resumed)) == timeless(read.metrics(whole))


# ---- without an engine ----

A, B, C = ([1, 2, 3], [4, 5]), ([6], [7]), ([8, 9], [10, 11, 12, 13])


def rolled(*groups: tuple[list[int], list[int]], put_aside: set[int]) -> Rollout:
    """A rollout of groups of two responses each. put_aside: the responses that did not end."""
    responses = [response for group in groups for response in group]
    reasons = [PUT_ASIDE if place in put_aside else "stop" for place in range(len(responses))]
    return Rollout(0, ["p"] * len(responses), responses, reasons, [RequestCost(1, 0)] * 6, 1.0, RolloutReport(passes=6))


def test_groups_that_are_not_chosen_are_granted_the_tokens_of_the_step() -> None:
    pool = [Group(number, 10 + number, [[], []]) for number in range(3)]
    _, enough = begun(pool, 7, 1, 2)
    rollout = rolled(A, B, C, put_aside={0, 4})
    others = [Group(0, 10, list(A), 1, 1), Group(2, 12, list(C), 1, 1)]
    assert divide(pool, rollout, enough) == ([1], others)
    assert verified(pool, rollout) == []
    # In the next step the first group's responses are: equal as far as it came, and another one from its second token.
    pool = [*others, Group(3, 13, [[], []])]
    rollout = rolled(([1, 2], [4, 6, 7]), ([8, 9, 1], [10, 11, 12, 13]), ([1], [2]), put_aside={0, 4})
    assert divide(pool, rollout, begun(pool, 7, 1, 2)[1]) == (
        [1],
        [Group(0, 10, [[1, 2, 3], [4, 6, 7]], 4, 2), Group(3, 13, [[1], [2]], 3, 1)],
    )
    assert verified(pool, rollout) == [Verified(1, 2, 2), Verified(1, 2, 1), Verified(1, 2, 2), Verified(1, 4, 4)]


def test_every_process_trains_on_as_many_groups_as_that_with_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = [Group(number, 10 + number, [[], []]) for number in range(3)]
    rollout = rolled(A, B, C, put_aside={4})
    _, enough = begun(pool, 7, 2, 2)
    assert divide(pool, rollout, enough)[0] == [0, 1]
    monkeypatch.setattr(ranks, "gather", lambda own: [own, 1])
    others = [Group(0, 10, list(A), 3, 1), Group(2, 12, list(C), 3, 1)]  # the first was done, and continues complete
    assert divide(pool, rollout, enough) == ([1], others)


@pytest.mark.parametrize("rank", [0, 1])
def test_seeds_follow_the_place_in_the_data(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(rank))
    pool = [Group(number, 0, [[], []]) for number in (1, 4)]
    assert begun(pool, 7, 2, 2)[0].seeds == [
        request_seed(7, step, 4 * rank + index) for step, index in ((0, 2), (0, 3), (2, 0), (2, 1))
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([1, 2, 3], [1, 2], [1, 2, 3]),
        ([1, 2], [1, 2, 3], [1, 2, 3]),
        ([1, 2, 3], [1, 4], [1, 4]),
        ([1, 2, 3], [], [1, 2, 3]),
        ([], [5], [5]),
        ([1, 2], [1, 2], [1, 2]),
    ],
)
def test_old_tokens_stay_unless_another_came(old: list[int], new: list[int], expected: list[int]) -> None:
    assert longer(old, new) == expected
    assert shared(old, new) == len([0 for a, b in zip(old, new, strict=False) if a == b])


@pytest.mark.parametrize("groups", [[], [Group(3, 5, [[1, 2], []], 40, 2), Group(9, 0, [[7], [8]])]])
def test_what_is_put_aside_is_kept(tmp_path: Path, groups: list[Group]) -> None:
    save_groups(tmp_path, groups, 10)
    assert load_groups(tmp_path) == (groups, 10)
