"""Groups that are put aside: drafts change no bit, the newest weights draw every token, a resumed run is the same.

That tokens are equal wherever a response was interrupted is in tests/engine/test_set_aside_identity.py.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RANKS, RANKS_STEPS
from lag_runs import outcome, tokens_of_checkpoints, train_again, train_all
from scripts import TWO_RANKS, run_script

from analysis import read
from das import ranks
from das.engine.rollouts.enough import PUT_ASIDE
from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout import Rollout, request_seed
from experiments.harness.resume import CHECKPOINTS
from experiments.tasks.kill_test import differing_files, timeless
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

KINDS = ("1", "3", "1_limited")  # groups beside those of a step; whether LIMITED
# A limit of tokens, and tokens that end a response: without them all responses are equally long.
LIMITED = [
    "trainer.partial_tokens=16", "+trainer.generation_kwargs={stop_token_ids:[99,179,198,206,291]}",
    "trainer.learning_rate=0.001",
]  # fmt: skip


def settings(kind: str) -> list[str]:
    spare = int(kind[0])
    return [f"trainer.partial={spare}", f"engine.max_num_seqs={8 + 4 * spare}", *(LIMITED if "_" in kind else [])]


def lengths(run: dict[str, Any]) -> set[int]:
    """The lengths of the trained responses. run: its outcome."""
    return {len(response) for responses in run["tokens"] for response in responses}


@pytest.fixture(scope="module")
def trained(in_process: Callable[..., Any], repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partial")
    runs = {f"{arm}_{kind}": [arm, *settings(kind)] for kind in KINDS for arm in ("none", "das")}
    in_process(train_all, runs, repetitive_policy, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_change_no_bit(trained: Path, kind: str) -> None:
    none, das = (outcome(trained / f"{arm}_{kind}") for arm in ("none", "das"))
    assert das == none
    rows = read.metrics(trained / f"das_{kind}")
    trains = [row["partial"]["trained_groups"] for row in rows]
    assert [row["partial"]["groups"] + trained for row, trained in zip(rows, trains, strict=True)] == [
        2 + int(kind[0])
    ] * len(rows)
    assert set(trains) == ({1, 2} if "_" in kind else {2})
    assert "_" not in kind or len(lengths(das)) > 5
    assert 0 < sum(row["partial"]["kept_tokens"] for row in rows) < sum(row["partial"]["old_tokens"] for row in rows)
    assert sum(row["passes"] for row in rows) < sum(row["passes"] for row in read.metrics(trained / f"none_{kind}"))


@pytest.mark.slow
def test_the_newest_weights_draw_every_trained_token(
    in_process: Callable[..., Any], trained: Path, repetitive_policy: str
) -> None:
    expected = in_process(tokens_of_checkpoints, repetitive_policy, trained / "das_3", 0, True)
    assert outcome(trained / "das_3")["tokens"] == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1", "1_limited"])
def test_a_resumed_run_is_the_same(
    in_process: Callable[..., Any], trained: Path, repetitive_policy: str, tmp_path: Path, kind: str
) -> None:
    whole, resumed = trained / f"das_{kind}", tmp_path / "resumed"
    in_process(train_again, "das", repetitive_policy, whole, resumed, 3, *settings(kind))
    assert outcome(resumed) == outcome(whole)
    assert timeless(read.metrics(resumed)) == timeless(read.metrics(whole))
    assert list(differing_files(whole, resumed)) == []


# ---- two processes, each with its own engine and its own groups ----


def trained_by_two(folder: Path, *arguments: str) -> Path:
    run_script(*TWO_RANKS, "run.py", *arguments)
    return folder


@pytest.fixture(scope="module")
def two_processes(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each arm. Of 4 problems a step, 2 of each process, those are trained that are done within 16 tokens."""
    folder = tmp_path_factory.mktemp("two")
    limit = ["trainer.partial=2", "engine.max_num_seqs=12", *LIMITED]
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
    assert len(lengths(das)) > 5
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
    plan = begun(pool, 7, 1, 2)
    rollout = rolled(A, B, C, put_aside={0, 4})
    others = [Group(0, 10, list(A), 1, 1), Group(2, 12, list(C), 1, 1)]
    assert divide(pool, rollout, plan.enough) == ([1], others)
    assert verified(pool, rollout) == []
    # In the next step the first group's responses are: equal as far as it came, and another one from its second token.
    pool = [*others, Group(3, 13, [[], []])]
    rollout = rolled(([1, 2], [4, 6, 7]), ([8, 9, 1], [10, 11, 12, 13]), ([1], [2]), put_aside={0, 4})
    assert divide(pool, rollout, begun(pool, 7, 1, 2).enough) == (
        [1],
        [Group(0, 10, [[1, 2, 3], [4, 6, 7]], 4, 2), Group(3, 13, [[1], [2]], 3, 1)],
    )
    assert verified(pool, rollout) == [Verified(1, 2, 2), Verified(1, 2, 1), Verified(1, 2, 2), Verified(1, 4, 4)]


def test_every_process_trains_on_as_many_groups_as_that_with_the_fewest(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = [Group(number, 10 + number, [[], []]) for number in range(3)]
    rollout = rolled(A, B, C, put_aside={4})
    enough = begun(pool, 7, 2, 2).enough
    assert divide(pool, rollout, enough)[0] == [0, 1]
    monkeypatch.setattr(ranks, "gather", lambda own: [own, 1])
    others = [Group(0, 10, list(A), 3, 1), Group(2, 12, list(C), 3, 1)]  # the first was done, and continues complete
    assert divide(pool, rollout, enough) == ([1], others)


@pytest.mark.parametrize("rank", [0, 1])
def test_seeds_follow_the_place_in_the_data(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", str(rank))
    pool = [Group(number, 0, [[], []]) for number in (1, 4)]
    assert begun(pool, 7, 2, 2).seeds == [
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
