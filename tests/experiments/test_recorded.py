"""Reading recorded rollouts; bad files end in one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from experiments.errors import UserError
from experiments.recorded import read_rollouts

TRACES = Path(__file__).resolve().parents[2] / ".." / "shared" / "data" / "traces"


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
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


def test_epochs_of_a_file_without_steps(tmp_path: Path) -> None:
    rows = [{"problem_id": p, "run": r, "response": f"x {p} {r}"} for p in "abc" for r in range(5)]
    steps = read_rollouts(write(tmp_path / "x.jsonl", rows), group=2, batch=2)
    assert [work.problems for work in steps] == 2 * [("a", "a", "b", "b"), ("c", "c")]
    by_step = [{"problem_id": "a", "step": s, "response_ids": [s]} for s in (3, 1, 3)]
    assert [len(work) for work in read_rollouts(write(tmp_path / "y.jsonl.gz", by_step))] == [1, 2]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "empty"),
        (["{"], "line 1 is not JSON"),
        ([{"problem_id": "a"}], "response_ids or response"),
        ([{"problem_id": "a", "response_ids": [1]}, {"problem_id": "a", "response": "x"}], "mixes token ids and text"),
        ([{"problem_id": "a", "response_ids": [1], "tokenizer": t} for t in ("q", "r")], "mixes tokenisers: q, r"),
        ([{"problem_id": "a", "response_ids": [-1]}], "token ids must be in"),
        ([{"problem_id": "a", "response_ids": []}], "no responses"),
        ([{"problem_id": "a", "response_ids": [1], "step": 1}, {"problem_id": "a", "response_ids": [1]}], "some rows"),
    ],
)
def test_bad_rows_are_one_line(tmp_path: Path, rows: list[Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        read_rollouts(write(tmp_path / "x.jsonl", rows))
    assert "\n" not in str(error.value)


def test_missing_paths(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UserError, match=r"does not exist|holds no rollouts"):
            read_rollouts(path)


@pytest.mark.skipif(not TRACES.exists(), reason="recorded traces are not at hand: ../shared/data/traces")
def test_recorded_trace() -> None:
    steps = read_rollouts(TRACES / "areal_salloc.jsonl.gz", group=1)
    assert [len(work) for work in steps] == [30, 30]
    assert steps[0].lengths.mean() > 5000
