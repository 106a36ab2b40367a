"""Problem files that are missing, empty, truncated or something else: one clear line each."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from experiments.problems import files
from experiments.problems import reference_solutions as problem_sets
from experiments.run.errors import UserError

LEETCODE = [{"solutions": "class Solution: ...", "tests": {"functional": "def check(c): pass\ncheck(Solution().f)"}}]
HUMANEVAL = {"task_id": "a/0", "prompt": "def f():\n", "canonical_solution": "    pass", "test": "", "entry_point": "f"}


def packed(value: Any) -> bytes:
    return gzip.compress(json.dumps(value).encode())


BAD_LEETCODE = {
    "truncated": packed(LEETCODE)[:-20],
    "a flipped byte": packed(LEETCODE)[:20] + b"\xff\xff" + packed(LEETCODE)[22:],
    "an object": packed({"problem": 1}),
    "rows of another type": packed([1]),
    "no solutions": packed([{"tests": {}}]),
    "number for text": packed([{"solutions": 1, "tests": {"functional": "x"}}]),
    "tests that are no Python": packed([{**LEETCODE[0], "tests": {"functional": "def ("}}]),
    "tests without a call": packed([{**LEETCODE[0], "tests": {"functional": "x = 1"}}]),
    "deeply nested": gzip.compress(b"[" * 200_000),
}


def one_line(call: Callable[[Path], Any], path: Path) -> None:
    with pytest.raises(UserError) as error:
        call(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", BAD_LEETCODE.values(), ids=list(BAD_LEETCODE))
def test_bad_deepcoder_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json.gz"
    path.write_bytes(content)
    one_line(problem_sets.deepcoder, path)


def test_absurd_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MAX_BYTES", 1000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(bytes(1 << 20)))
    one_line(problem_sets.deepcoder, path)


def test_bad_humaneval_and_maths_files(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    for call in (problem_sets.humaneval, problem_sets.gold_answers, problem_sets.deepcoder):
        one_line(call, tmp_path / "missing")
        one_line(call, tmp_path)
    for row in ({}, {**HUMANEVAL, "prompt": None}, [1]):
        path.write_bytes(packed(row))
        one_line(problem_sets.humaneval, path)
    path.write_bytes(b"PAR1 no parquet")
    one_line(problem_sets.gold_answers, path)
    for column in ([{"ground_truth": 1.5}], [{"other": "1"}], [None]):
        pyarrow.parquet.write_table(pyarrow.table({"reward_model": column}), path)
        one_line(problem_sets.gold_answers, path)
    pyarrow.parquet.write_table(pyarrow.table({"answer": ["1"]}), path)
    one_line(problem_sets.gold_answers, path)


def test_good_files(tmp_path: Path) -> None:
    path = tmp_path / "good"
    path.write_bytes(packed(LEETCODE))
    assert problem_sets.deepcoder(path)[0][0] == "leetcode/0"
    path.write_bytes(packed(HUMANEVAL))
    assert problem_sets.humaneval(path)[0][1] == "def f():\n    pass"
    pyarrow.parquet.write_table(pyarrow.table({"reward_model": [{"ground_truth": "1"}]}), path)
    assert problem_sets.gold_answers(path) == ["1"]
