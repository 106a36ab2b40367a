"""Reference solutions and correct answers of published problem files, for task=bench_rewards."""

import json
from pathlib import Path

import pyarrow.parquet

from experiments.problems.files import lines, read, some, text, unpacked
from rewards.code import humaneval_tests, leetcode_tests


def deepcoder(path: Path) -> list[tuple[str, str, str]]:
    """(name, reference solution, tests) of deepcoder_leetcode.json.gz. Tests are in the form of rewards/code.py."""

    def parse(path: Path) -> list[tuple[str, str, str]]:
        rows = json.loads(unpacked(path))
        return [
            (f"leetcode/{i}", text(row["solutions"]), leetcode_tests(text(row["tests"]["functional"])))
            for i, row in enumerate(some(rows))
        ]

    return read(path, parse)


def humaneval(path: Path) -> list[tuple[str, str, str]]:
    """(name, reference solution, tests) of HumanEval.jsonl.gz."""

    def parse(path: Path) -> list[tuple[str, str, str]]:
        rows = lines(unpacked(path))
        return [
            (text(row["task_id"]), text(row["prompt"]) + text(row["canonical_solution"]), humaneval_tests(row))
            for row in some(rows)
        ]

    return read(path, parse)


def gold_answers(path: Path) -> list[str]:
    """The correct answers of a maths set: `reward_model.ground_truth` of a parquet file."""

    def parse(path: Path) -> list[str]:
        rows = pyarrow.parquet.read_table(path, columns=["reward_model"]).to_pylist()
        return [text(row["reward_model"]["ground_truth"]) for row in some(rows)]

    return read(path, parse)
