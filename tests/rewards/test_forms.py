"""Tests of published problem sets in the form that the reward takes."""

import json

import pytest

from rewards.forms import FORMS


@pytest.mark.parametrize("expected", [["1", "2"], [["1", "2"]], "1\n2"])
def test_standard_output_keeps_all_its_lines(expected: object) -> None:
    tests = FORMS["deepcoder"]({"inputs": [["2", "1"]], "outputs": [expected], "fn_name": None}, {}, None)
    assert ["2\n1", "1\n2"] in [list(case)[:2] for case in _pairs(json.loads(tests))]


def _pairs(node: object) -> list[list[str]]:
    """Every list of two texts, at any depth."""
    if isinstance(node, dict):
        return [pair for value in node.values() for pair in _pairs(value)]
    if isinstance(node, list):
        this_pair = [node] if len(node) == 2 and all(isinstance(value, str) for value in node) else []
        return this_pair + [pair for value in node for pair in _pairs(value)]
    return []


@pytest.mark.parametrize(
    ("arguments", "expected", "call"),
    [
        ('[1, 2]\n"3"', "123", [[[1, 2], "3"], [123]]),
        ('"a"', '"123"', [["a"], ["123"]]),
        ('"a"', "no JSON", [["a"], ["no JSON"]]),
        (["a"], "123", [["a"], ["123"]]),
        (["a"], ["123"], [["a"], [["123"], "123"]]),
        ([3], [0, 1, 2], [[3], [[0, 1, 2]]]),
        ([3], [[0, 1, 2]], [[3], [[[0, 1, 2]], [0, 1, 2]]]),
        ([3], [], [[3], [[]]]),
        ([1], 123, [[1], [123]]),
    ],
)
def test_results_are_json_where_the_arguments_are(arguments: object, expected: object, call: object) -> None:
    tests = json.loads(FORMS["deepcoder"]({"inputs": [arguments], "outputs": [expected], "fn_name": "f"}, {}, None))
    assert f"json.loads({json.dumps([call])!r})" in tests["tests"]
