"""Convert the tests of DeepCoder's sources into the JSON string that rewards/code.py takes."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from rewards.code import leetcode_tests, program_tests

_DEFINED = re.compile(r"^\s*def (?!__)(\w+)", re.MULTILINE)  # functions of starter code, but not __init__


class Unjudged(ValueError):
    """Tests that no solution can be judged by. The text is the reason, as in "left out: 3 without tests"."""


# Tests that call the candidate and compare its results with the accepted ones, as JSON: a tuple equals a list.
_CALLS = """
import json

CASES = json.loads({cases!r})


def plain(value):
    return json.loads(json.dumps(value))


def check(candidate):
    for arguments, accepted in CASES:
        result = plain(candidate(*arguments))
        assert any(same_value(result, value) for value in accepted)
"""


def tests_of(tests: Any, row: Mapping[str, Any], max_tests: int | None) -> str:
    """Convert the tests of one problem: {functional: source}, {inputs, outputs, fn_name?} or list of {input, output,
    ...}. All of it, or any part of the first level, may be JSON or a Python literal in a text.

    row: all columns of the problem. max_tests: how many tests to keep at most; None: all. Raises ValueError for tests
    that cannot be used: Unjudged with a reason that rows have in common.
    """
    if isinstance(tests, str) and not tests.strip():
        raise Unjudged("without tests")
    tests = _loaded(tests)
    if tests is None or tests in ([], {}):
        raise Unjudged("without tests")
    match tests:
        case {"functional": str(source)}:
            return leetcode_tests(source)
        case {"inputs": inputs, "outputs": outputs}:
            cases, name = _paired(_loaded(inputs), _loaded(outputs)), tests.get("fn_name")
        case [*listed]:
            listed = [_loaded(case) for case in listed]
            if not all(isinstance(case, dict) and {"input", "output"} <= case.keys() for case in listed):
                raise ValueError(f"tests of an unknown form: {str(tests)[:80]}")
            cases = [(case["input"], case["output"]) for case in listed]
            names = {_function_name(case, row) for case in listed}
            if len(names) > 1:
                raise Unjudged("with tests of several functions, or of programs and functions")
            (name,) = names
        case _:
            raise ValueError(f"tests of an unknown form: {str(tests)[:80]}")
    # The longest inputs are kept, because they are the hardest, and slow solutions fail them. DeepCoder's own reward
    # does the same.
    cases = sorted(cases, key=lambda case: -len(str(case[0])))[:max_tests]
    if not cases:
        raise Unjudged("without tests")
    if not name:
        return program_tests([(_input(stdin), _output(expected)) for stdin, expected in cases])
    calls = json.dumps([_call(arguments, expected) for arguments, expected in cases])
    # A solution is either a method of LeetCode's class or a plain function.
    entry = f"Solution().{name} if 'Solution' in globals() else {name}"
    return json.dumps({"entry": entry, "tests": _CALLS.format(cases=calls)})


def _loaded(value: Any) -> Any:
    """Return what a text says in JSON, or as a Python literal, however often it is packed. Raises ValueError for other
    texts. Any other value is returned unchanged."""
    while isinstance(value, str):
        value = _literal(value)
    return value


def _literal(text: str) -> Any:
    """Return the value that a text says in JSON, or else as a Python literal. Raises ValueError if it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text.strip())
        except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
            raise ValueError(f"neither JSON nor a Python literal: {text[:80]!r}") from error


def _paired(inputs: Any, outputs: Any) -> list[tuple[Any, Any]]:
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError("inputs or outputs that are no list")
    if len(inputs) != len(outputs):
        raise Unjudged("with unequal numbers of inputs and outputs")
    return list(zip(inputs, outputs, strict=True))


def _function_name(case: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Return the name of the function to call; None if the solution is a program. Raises Unjudged if a function has no
    name, in the tests or in the code that a solution must begin with."""
    if case.get("type") != "function_call" and case.get("testtype") != "functional":
        return None
    if case.get("fn_name"):
        return str(case["fn_name"])
    for metadata in (case.get("metadata"), row.get("metadata")):
        fields = json.loads(metadata) if isinstance(metadata, str) and metadata else metadata
        if fields and fields.get("func_name"):
            return str(fields["func_name"])
    names = _DEFINED.findall(str(row.get("starter_code") or ""))
    if len(names) != 1:
        raise Unjudged("with tests of a function without a name")
    return str(names[0])


def _lines(expected: Any) -> Any:
    """Return the expected standard output. If a row has its list of lines inside another list, only the inner list is
    returned."""
    nested = isinstance(expected, list) and len(expected) == 1 and isinstance(expected[0], list)
    return expected[0] if nested else expected


def _joined(text: Any) -> str:
    """Return standard input or output as one text. Rows have it as one text or as a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _input(text: Any) -> str:
    """Return the standard input of a program: empty if a row has null."""
    return "" if text is None else _joined(text)


def _output(expected: Any) -> str:
    """Return the expected standard output of a program. Raises Unjudged if a row has null there."""
    lines = _lines(expected)
    if lines is None or (isinstance(lines, list) and None in lines):
        raise Unjudged("with a test without an expected output")
    return _joined(lines)


def _call(arguments: Any, expected: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments of a call, and the results that count as right.

    LiveCodeBench writes arguments and results as JSON, with one argument on each line; others write Python literals.
    TACO has plain values, and some of its results are inside a list.
    """
    if not isinstance(arguments, str):
        if not isinstance(arguments, list):
            raise ValueError(f"arguments that are no list: {str(arguments)[:80]}")
        return arguments, _accepted(expected)
    arguments = [_literal(line) for line in arguments.split("\n") if line.strip()]
    try:
        return arguments, [_literal(expected)]
    except (TypeError, ValueError):  # the result is a plain value, although the arguments are JSON
        return arguments, _accepted(expected)


def _accepted(expected: Any) -> list[Any]:
    """Return the results that count as right: the expected value and, if it is a list of one item, that item."""
    return [expected, expected[0]] if isinstance(expected, list) and len(expected) == 1 else [expected]
