"""What counts as the expected output or result: as LiveCodeBench's checker decides, which DeepCoder's reward uses."""

import json
from typing import Any

import pytest

from rewards import forms
from rewards.checker import same_output, same_value
from rewards.code import CodeReward, leetcode_tests, program_tests

FUNCTION = "class Solution:\n    def f(self, x): return {}"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("4", "4.000"),
        ("0.333333", "0.3333333333333333"),
        ("1e-7", "0.0"),
        (".5 1.50", "0.5 1.5"),
        ("123456789012.5", "123456789012.6"),  # within a millionth
        ("Yes\n2.50\n", "Yes\n2.5\n"),
        ("1 2\n3", "1\n2\n3"),  # the lines of equal words do not count
        ("", ""),
    ],
)
def test_same_output(output: str, expected: str) -> None:
    assert same_output(output, expected)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("2.51", "2.5"),
        ("0.33333", "0.33333333"),
        ("50000000000000001", "50000000000000000"),  # the same float
        ("100000001", "100000000"),
        ("yes", "Yes"),
        ("Case 1: 2.50", "Case 1: 2.5"),
        ("1.0 2.5", "1\n2.50"),  # numbers are compared line by line
        ("\uff13\uff16.0", "36"),
        ("nan", "NaN"),
        ("inf", "1e400"),
        ("9" * 30 + "e999999", "1e999999"),
        ("0", ""),
    ],
)
def test_other_output(output: str, expected: str) -> None:
    assert not same_output(output, expected)


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (0.1 + 0.2, 0.3, True),
        ([[0.1 + 0.2], 1], [[0.3], 1], True),
        ({"a": 0.1 + 0.2}, {"a": 0.3}, True),
        (1e9 + 0.5, 1e9, True),
        (3.9999999, 4, True),
        ((0.3,), [0.3], False),
        (50000000000000001, 50000000000000000, False),
        (10**400, 1.0, False),
        (float("nan"), 0.3, False),
        (float("inf"), 1e308, False),
        ("0.30", "0.3", False),
        (True, 1.0000001, False),
    ],
)
def test_results_of_functions(value: Any, expected: Any, same: bool) -> None:
    assert same_value(value, expected) is same


def test_programs_and_functions_are_judged_so(code_reward: CodeReward) -> None:
    half = program_tests([("5\n", "2.50000")])
    sums = forms.tests_of([{"input": "1", "output": "[0.3]", "testtype": "functional"}], _NAMED, None)
    leetcode = leetcode_tests(
        "def check(candidate):\n    assert candidate(x = 1) == [0.30000]\n\n\ncheck(Solution().f)"
    )
    right = ["print(int(input()) / 2)", FUNCTION.format("[0.1 + 0.2]"), FUNCTION.format("[0.1 + 0.2]")]
    wrong = ["print(int(input()) / 2 + .01)", FUNCTION.format("[0.31]"), FUNCTION.format("[0.3, 0.3]")]
    for sources, reward in ((right, 1.0), (wrong, 0.0)):
        completions = [f"```python\n{source}\n```" for source in sources]
        assert code_reward(completions, [half, sums, leetcode]) == [reward] * 3, code_reward.verdicts


def test_whole_numbers_of_many_digits_are_read_and_written(code_reward: CodeReward) -> None:
    """Python refuses more than 4,300 digits unless it is told otherwise; LiveCodeBench's checker allows 50,000."""
    tests = program_tests([("9" * 5000, "9" * 4999 + "8")])
    functional = leetcode_tests("def check(candidate):\n    assert candidate(5000) == 10 ** 5000\ncheck(f)")
    completions = ["```\nprint(int(input()) - 1)\n```", "```\ndef f(x): return 10 ** x\n```"]
    assert code_reward(completions, [tests, functional]) == [1.0, 1.0], code_reward.verdicts


_NAMED = {"metadata": json.dumps({"func_name": "f"})}
