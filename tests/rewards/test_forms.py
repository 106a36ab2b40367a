"""Tests of published sets in the reward's form."""

import json

import pytest

from rewards.forms import FORMS


@pytest.mark.parametrize("wanted", [["1", "2"], [["1", "2"]], "1\n2"])
def test_standard_output_keeps_all_its_lines(wanted: object) -> None:
    found = FORMS["deepcoder"]({"inputs": [["2", "1"]], "outputs": [wanted], "fn_name": None}, {}, None)
    assert ["2\n1", "1\n2"] in [list(case)[:2] for case in _pairs(json.loads(found))]


def _pairs(node: object) -> list[list[str]]:
    """Every list of two texts, however deep."""
    if isinstance(node, dict):
        return [pair for value in node.values() for pair in _pairs(value)]
    if isinstance(node, list):
        here = [node] if len(node) == 2 and all(isinstance(value, str) for value in node) else []
        return here + [pair for value in node for pair in _pairs(value)]
    return []


@pytest.mark.parametrize(
    ("given", "wanted", "call"),
    [
        ('[1, 2]\n"3"', "123", [[[1, 2], "3"], [123]]),
        ('"a"', '"123"', [["a"], ["123"]]),
        ('"a"', "no JSON", [["a"], ["no JSON"]]),
        (["a"], "123", [["a"], ["123"]]),
        (["a"], ["123"], [["a"], [["123"], "123"]]),
        ([1], 123, [[1], [123]]),
    ],
)
def test_results_are_json_where_the_arguments_are(given: object, wanted: object, call: object) -> None:
    found = json.loads(FORMS["deepcoder"]({"inputs": [given], "outputs": [wanted], "fn_name": "f"}, {}, None))
    assert f"json.loads({json.dumps([call])!r})" in found["tests"]
