"""Reading recorded rollouts; bad files end in one line."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import one_line
from steps_on_disk import json_lines

from das.drafter.distributions import NO_PAIR, Distributions
from experiments.run.errors import UserError
from experiments.simulate.rollouts import is_text, read_rollouts

SURE = Distributions(np.zeros(3, np.uint8), np.empty(0, np.uint32))  # each token is the only likely one


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join(row + "\n" if isinstance(row, str) else json_lines([row]) for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_steps_of_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    for step in (1, 2):
        rows = [{"problem_id": "a", "response_ids": [step, 2, 3]}, {"problem_id": "b", "response_ids": [4]}]
        write(tmp_path / "rollouts" / f"step_{step:05d}.jsonl.gz", rows)
    steps = read_rollouts(tmp_path, prompt=7)
    assert [work.response(0).tolist() for work in steps] == [[1, 2, 3], [2, 2, 3]]
    assert steps[0].problems == ("a", "b")
    assert steps[0].prompt == 7
    (tmp_path / "comparison" / "arms" / "none").mkdir(parents=True)
    (tmp_path / "comparison" / "rollouts").mkdir()  # a comparison leaves this folder empty
    (tmp_path / "rollouts").rename(tmp_path / "comparison" / "arms" / "none" / "rollouts")
    assert len(read_rollouts(tmp_path / "comparison")) == 2


def test_epochs_of_a_file_without_steps(tmp_path: Path) -> None:
    rows = [{"problem_id": p, "run": r, "response": f"x {p} {r}"} for p in "abc" for r in range(5)]
    steps = read_rollouts(write(tmp_path / "x.jsonl", rows), group=2)
    assert [work.problems for work in steps] == 2 * [("a", "a", "b", "b", "c", "c")]
    by_step = [{"problem_id": "a", "step": s, "response_ids": [s]} for s in (3, 1, 3)]
    assert [len(work) for work in read_rollouts(write(tmp_path / "y.jsonl.gz", by_step))] == [1, 2]


def test_a_word_is_the_same_token_in_every_step(tmp_path: Path) -> None:
    """Otherwise the history of one step would never match the text of the next."""
    rows = [{"problem_id": "a", "step": s, "response": text} for s, text in ((1, "one 7"), (2, "7 one"))]
    first, second = read_rollouts(write(tmp_path / "x.jsonl", rows))
    assert first.response(0)[-1] == second.response(0)[0]  # the 7
    for step, row in enumerate(rows, 1):
        write(tmp_path / f"step_{step:05d}.jsonl.gz", [row])
    again = read_rollouts(tmp_path)
    assert [work.tokens.tolist() for work in again] == [first.tokens.tolist(), second.tokens.tolist()]


def test_a_folder_of_jsonl_files(tmp_path: Path) -> None:
    """Each file is a step unless its rows name steps. Other files of the folder are ignored."""
    for name, token in (("2.jsonl", 2), ("10.jsonl", 10)):
        write(tmp_path / name, [{"problem_id": 5, "response_ids": [token]}])
    write(tmp_path / "metrics.jsonl", [{"loss": 1}])
    assert [work.tokens.tolist() for work in read_rollouts(tmp_path)] == [[2], [10]]
    assert not is_text(tmp_path)
    write(tmp_path / "2.jsonl", [{"problem_id": "5", "response_ids": [s], "step": s} for s in (3, 1)])
    write(tmp_path / "10.jsonl", [{"problem_id": "5", "response_ids": [7], "step": 1}])
    assert [work.tokens.tolist() for work in read_rollouts(tmp_path)] == [[1, 7], [3]]
    write(tmp_path / "10.jsonl", [{"problem_id": "5", "response_ids": [7], "step": 1, "tokenizer": "a"}])
    write(tmp_path / "2.jsonl", [{"problem_id": "5", "response_ids": [7], "step": 1, "tokenizer": "b"}])
    with pytest.raises(UserError, match="mixes tokenisers: a, b"):
        read_rollouts(tmp_path)


def test_no_problem_is_dropped_for_having_fewer_responses(tmp_path: Path) -> None:
    rows = [{"problem_id": p, "response_ids": [1, 2]} for p in ("a", "a", "a", "b")]
    (all_responses,) = read_rollouts(write(tmp_path / "x.jsonl", rows))
    assert all_responses.problems == ("a", "a", "a", "b")
    assert [work.problems for work in read_rollouts(tmp_path / "x.jsonl", group=2)] == [("a", "a")]


def test_a_run_may_have_any_name(tmp_path: Path) -> None:
    rows = [{"problem_id": "a", "run": run, "response_ids": [1]} for run in ("data", "x/alpha_1p0")]
    assert len(read_rollouts(write(tmp_path / "x.jsonl", rows))[0]) == 2
    steered = [
        {"problem_id": "a", "run": f"x/alpha_{alpha}", "response_ids": [1]} for alpha in ("0p0", "1p0", "neg1p0")
    ]
    assert len(read_rollouts(write(tmp_path / "steer_r1d_qwen14b_pos0to3.jsonl.gz", steered))[0]) == 1


def test_distributions_and_seeds_are_read(tmp_path: Path) -> None:
    """Where a row has them. A response may have another number of tokens than distributions: the last ones are cut, or
    unknown."""
    row = {"problem_id": "a", "response_ids": [1, 2, 3]}
    rows = [
        {**row, "distributions": SURE.text(), "seed": 2**61 + 1},
        row,
        {**row, "response_ids": [1, 2], "distributions": SURE.text(), "seed": None},
        {**row, "response_ids": [1, 2, 3, 4], "distributions": SURE.text()},
    ]
    (work,) = read_rollouts(write(tmp_path / "x.jsonl", rows))
    assert [None if each is None else each.seed for each in work.sampling] == [2**61 + 1, None, None, None]
    assert work.sampling[1] is None
    assert work.remembered is not None
    first = [1 << 5, 2 << 5, 3 << 5]
    assert work.remembered[:, 0].tolist() == [*first, *[NO_PAIR] * 3, *first[:2], *first, NO_PAIR]
    assert (work.remembered[:, 1:] == NO_PAIR).all()
    assert work.part([2, 0]).remembered.tolist() == work.remembered[[6, 7, 0, 1, 2]].tolist()  # type: ignore[union-attr]


def test_empty_responses_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"problem_id": "a", "response_ids": ids} for ids in ([1], [], [2])]
    path = write(tmp_path / "rollouts.jsonl", rows)
    (work,) = read_rollouts(path)
    assert len(work) == 2
    assert capsys.readouterr().err == f"{path}: 1 of 3 responses are empty and left out\n"


A = {"problem_id": "a", "response_ids": [1]}


@pytest.mark.parametrize(
    "rows",
    [
        ["{"],
        [[1, 2]],
        ["[" * 100_000],
        [A | {"response_ids": [-1]}],
        [A | {"response_ids": [2**31]}],
        [A | {"response_ids": [float("nan")]}],
        [A, {"problem_id": "a", "response": "x"}],
        [A | {"tokenizer": "q"}, A | {"tokenizer": "r"}],
        [A | {"step": 1, "tokenizer": "q"}, A | {"step": 2, "tokenizer": "r"}],
        [A | {"response_ids": []}],
        [A | {"step": 1}, A],
        [A | {"step": "x"}],
        [A | {"response_ids": 5}],
        [{"problem_id": "a", "response": 5}],
        [A | {"distributions": [1]}],
        [A | {"distributions": "eJw="}],
        [A | {"distributions": SURE.text(), "seed": "x"}],
    ],
)
def test_bad_rows_are_one_line(tmp_path: Path, rows: list[Any]) -> None:
    with one_line("x.jsonl"):
        read_rollouts(write(tmp_path / "x.jsonl", rows))
