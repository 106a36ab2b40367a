"""Tests of published problem sets in the form that the reward takes."""

import json
from typing import Any

import pytest

from rewards import forms
from rewards.code import CodeReward
from rewards.forms import Unjudged


@pytest.mark.parametrize("expected", [["1", "2"], [["1", "2"]], "1\n2"])
def test_standard_output_keeps_all_its_lines(expected: object) -> None:
    tests = forms.tests_of({"inputs": [["2", "1"]], "outputs": [expected], "fn_name": None}, {}, None)
    assert json.loads(tests) == {"tests": [["2\n1", "1\n2"]]}


@pytest.mark.parametrize(
    ("arguments", "expected", "call"),
    [
        ('[1, 2]\n"3"', "123", [[[1, 2], "3"], [123]]),
        ('"a"', '"123"', [["a"], ["123"]]),
        ('"a"', "no JSON", [["a"], ["no JSON"]]),
        (["a"], ["123"], [["a"], [["123"], "123"]]),
        ([3], [[0, 1, 2]], [[3], [[[0, 1, 2]], [0, 1, 2]]]),
    ],
)
def test_results_are_json_where_the_arguments_are(arguments: object, expected: object, call: object) -> None:
    tests = json.loads(forms.tests_of({"inputs": [arguments], "outputs": [expected], "fn_name": "f"}, {}, None))
    assert f"json.loads({json.dumps([call])!r})" in tests["tests"]


# Rows of DeepCoder's sources in other forms than the usual ones, a right solution, and a wrong one.
SCHEMAS: dict[str, tuple[dict[str, Any], str, str]] = {
    "JSON inside JSON": (
        {"tests": json.dumps(json.dumps({"inputs": ["2"], "outputs": ["4"]}))},
        "print(2 * int(input()))",
        "print(int(input()))",
    ),
    "lists inside JSON": (
        {"tests": {"inputs": "[[2], [3]]", "outputs": "[4, 6]", "fn_name": "f"}},
        "def f(x): return 2 * x",
        "def f(x): return x",
    ),
    "Python literals": (
        {"tests": "{'inputs': [[True], [False]], 'outputs': [False, True], 'fn_name': 'f'}"},
        "def f(x): return not x",
        "def f(x): return x",
    ),
    "Python literals as arguments and results": (
        {"tests": [{"input": "True\n[None, 1]", "output": "(None, True)", "testtype": "functional", "fn_name": "f"}]},
        "def f(a, b): return b[0], a",
        "def f(a, b): return a, b[0]",
    ),
    "null as a result": (
        {"tests": [{"input": "[]", "output": "null", "testtype": "functional", "fn_name": "f"}]},
        "def f(x): return None",
        "def f(x): return 'None'",
    ),
    "null as an input": ({"tests": {"inputs": [None], "outputs": ["0"]}}, "print(len(open(0).read()))", "print(1)"),
    "a function without a name, with starter code": (
        {
            "tests": [{"input": "2", "output": "4", "testtype": "functional", "metadata": {}}],
            "starter_code": "class Solution:\n    def __init__(self):\n        pass\n    def f(self, x: int) -> int:\n",
        },
        "class Solution:\n    def f(self, x): return 2 * x",
        "class Solution:\n    def f(self, x): return x",
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_other_schemas_are_judged(name: str, code_reward: CodeReward) -> None:
    row, right, wrong = SCHEMAS[name]
    tests = forms.tests_of(row["tests"], row, 15)
    completions = [f"```python\n{source}\n```" for source in (right, wrong)]
    assert code_reward(completions, [tests, tests]) == [1.0, 0.0], code_reward.verdicts


STDIN = {"input": "2", "output": "4", "type": "stdin_stdout", "fn_name": None}
CALL = {"input": [2], "output": [4], "type": "function_call", "fn_name": "f"}


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (None, "without tests"),
        ({"inputs": [], "outputs": []}, "without tests"),
        ({"inputs": ["1", "2"], "outputs": ["1"]}, "with unequal numbers of inputs and outputs"),
        ({"inputs": ["1"], "outputs": [["1", None]]}, "with a test without an expected output"),
        ([{**STDIN, "output": None}], "with a test without an expected output"),
        ([{**CALL, "fn_name": None}], "with tests of a function without a name"),
        ([{"input": "2", "output": "4", "testtype": "functional"}], "with tests of a function without a name"),
        ([STDIN, CALL], "with tests of several functions, or of programs and functions"),
        ([CALL, {**CALL, "fn_name": "g"}], "with tests of several functions, or of programs and functions"),
    ],
)
def test_tests_that_nobody_can_be_judged_by_have_a_reason(tests: object, reason: str) -> None:
    with pytest.raises(Unjudged, match=f"^{reason}$"):
        forms.tests_of(tests, {}, None)
