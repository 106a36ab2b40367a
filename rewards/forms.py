"""Convert the tests of published problem sets into the JSON string that rewards/code.py takes.

Every function here returns that string, or raises ValueError for tests that cannot be used.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewards.code import humaneval_tests, leetcode_tests, program_tests

# Tests that call the candidate and compare its results with the accepted ones, as JSON: a tuple equals a list.
_CALLS = """
import json

CASES = json.loads({cases!r})


def plain(value):
    return json.loads(json.dumps(value))


def check(candidate):
    for arguments, accepted in CASES:
        assert plain(candidate(*arguments)) in accepted
"""


def tests_of(form: str, tests: Any, row: Mapping[str, Any], max_tests: int | None) -> str:
    """Convert the tests of one problem. form: a key of FORMS. row: all columns of the problem. max_tests: how many
    tests to keep at most; None: all."""
    return FORMS[form](tests, row, max_tests)


def _humaneval(tests: Any, row: Mapping[str, Any], max_tests: int | None) -> str:
    """Convert HumanEval's tests: source that defines check(candidate). Tests and solution may use the `prompt`."""
    columns = {"test": tests, "prompt": row.get("prompt"), "entry_point": row.get("entry_point")}
    texts = {name: value for name, value in columns.items() if isinstance(value, str)}
    if texts.keys() < columns.keys():
        raise ValueError("HumanEval tests need text in the columns prompt, entry_point and test")
    return humaneval_tests(texts)


def _mbpp(tests: Any, row: Mapping[str, Any], max_tests: int | None) -> str:
    """Convert MBPP's tests: a list of assert statements.

    The candidate is the function that they call and that the row's `code` defines.
    """
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not all(isinstance(line, str) for line in tests):
        raise ValueError("MBPP tests are not a list of assert statements")
    setup_code = row.get("test_imports") or row.get("test_setup_code") or []
    setup_lines = [setup_code] if isinstance(setup_code, str) else list(setup_code)
    try:
        defined = {node.name for node in ast.parse(str(row.get("code"))).body if isinstance(node, ast.FunctionDef)}
        body = ast.parse("\n".join(tests))
    except SyntaxError as error:
        raise ValueError(f"tests or code that are not Python: {error}") from error
    called = [node.func.id for node in ast.walk(body) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    entries = sorted(defined & set(called))
    if len(entries) != 1:
        raise ValueError(f"tests that call {' and '.join(entries) or 'no function'} of the reference solution")
    check = ["def check(candidate):", *(f"    {line}" for line in ast.unparse(body).split("\n"))]
    return json.dumps({"entry": entries[0], "tests": "\n".join([*setup_lines, *check]), "prefix": ""})


def _deepcoder(tests: Any, row: Mapping[str, Any], max_tests: int | None) -> str:
    """Convert DeepCoder's tests: {functional: source}, {inputs, outputs, fn_name?} or list of {input, output, ...}."""
    tests = json.loads(tests) if isinstance(tests, str) else tests
    match tests:
        case {"functional": str(source)}:
            return leetcode_tests(source)
        case {"inputs": [*inputs], "outputs": [*outputs]}:
            cases = list(zip(inputs, outputs, strict=False))
            name = tests.get("fn_name")
        case [_, *_] if all(isinstance(case, dict) and {"input", "output"} <= case.keys() for case in tests):
            cases = [(case["input"], case["output"]) for case in tests]
            name = _function_name(tests[0], row)
        case _:
            raise ValueError(f"tests of an unknown form: {str(tests)[:80]}")
    # The longest inputs are kept, because they are the hardest, and slow solutions fail them. DeepCoder's own reward
    # does the same.
    cases = sorted(cases, key=lambda case: -len(str(case[0])))[:max_tests]
    if not cases:
        raise ValueError("no tests")
    if not name:
        return program_tests([(_joined(stdin), _joined(_lines(expected))) for stdin, expected in cases])
    calls = json.dumps([_call(arguments, expected) for arguments, expected in cases])
    # A solution is either a method of LeetCode's class or a plain function.
    entry = f"Solution().{name} if 'Solution' in globals() else {name}"
    return json.dumps({"entry": entry, "tests": _CALLS.format(cases=calls), "prefix": ""})


def _function_name(case: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Return the name of the function to call; None if the solution is a program."""
    if case.get("type") == "function_call":
        return str(case.get("fn_name") or "") or None
    if case.get("testtype") != "functional":
        return None
    for metadata in (case.get("metadata"), row.get("metadata")):
        fields = json.loads(metadata) if isinstance(metadata, str) and metadata else metadata
        if fields and fields.get("func_name"):
            return str(fields["func_name"])
    return None  # some rows are marked functional but have only standard input and output


def _lines(expected: Any) -> Any:
    """Return the expected standard output. If a row has its list of lines inside another list, only the inner list is
    returned."""
    nested = isinstance(expected, list) and len(expected) == 1 and isinstance(expected[0], list)
    return expected[0] if nested else expected


def _joined(text: Any) -> str:
    """Return standard input or output as one text. Rows have it as one text or as a list of lines."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _call(arguments: Any, expected: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments of a call, and the results that count as right.

    LiveCodeBench writes arguments and results as JSON, with one argument on each line. TACO has plain values, and some
    of its results are inside a list.
    """
    if not isinstance(arguments, str):
        return arguments, _accepted(expected)
    arguments = [json.loads(line) for line in arguments.split("\n") if line.strip()]
    try:
        return arguments, [json.loads(expected)]
    except (TypeError, ValueError):  # the result is a plain value, although the arguments are JSON
        return arguments, _accepted(expected)


def _accepted(expected: Any) -> list[Any]:
    """Return the results that count as right: the expected value and, if it is a list of one item, that item."""
    return [expected, expected[0]] if isinstance(expected, list) and len(expected) == 1 else [expected]


FORMS: dict[str, Callable[[Any, Mapping[str, Any], int | None], str]] = {
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "deepcoder": _deepcoder,
}
