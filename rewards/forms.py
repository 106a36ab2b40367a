"""Tests of published problem sets in the form that rewards/code.py takes.

Every function returns that JSON string, or raises ValueError for tests that cannot be judged.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewards.code import humaneval_tests, leetcode_tests, program_tests

# Calls with their accepted results. Sequences count by what is in them: JSON knows no tuples.
_CALLS = """
import json

CASES = json.loads({cases!r})


def plain(value):
    return json.loads(json.dumps(value))


def check(candidate):
    for arguments, accepted in CASES:
        assert plain(candidate(*arguments)) in accepted
"""


def tests_of(form: str, tests: Any, row: Mapping[str, Any], most: int | None) -> str:
    """Tests of one problem. form: one of FORMS. row: all columns. most: how many at most, null for all."""
    return FORMS[form](tests, row, most)


def _humaneval(tests: Any, row: Mapping[str, Any], most: int | None) -> str:
    """`tests` defines check(candidate); the row's `prompt` what both sides may use."""
    texts = {"test": tests, "prompt": row.get("prompt"), "entry_point": row.get("entry_point")}
    needed = {name: value for name, value in texts.items() if isinstance(value, str)}
    if needed.keys() < texts.keys():
        raise ValueError("HumanEval tests need text in the columns prompt, entry_point and test")
    return humaneval_tests(needed)


def _mbpp(tests: Any, row: Mapping[str, Any], most: int | None) -> str:
    """A list of assert statements; the function's name is what they call and the row's `code` defines."""
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not all(isinstance(line, str) for line in tests):
        raise ValueError("MBPP tests are no list of assert statements")
    before = row.get("test_imports") or row.get("test_setup_code") or []
    setup = [before] if isinstance(before, str) else list(before)
    try:
        defined = {node.name for node in ast.parse(str(row.get("code"))).body if isinstance(node, ast.FunctionDef)}
        body = ast.parse("\n".join(tests))
    except SyntaxError as error:
        raise ValueError(f"tests or code that are no Python: {error}") from error
    called = [node.func.id for node in ast.walk(body) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    entries = sorted(defined & set(called))
    if len(entries) != 1:
        raise ValueError(f"tests that call {' and '.join(entries) or 'no function'} of the reference solution")
    check = ["def check(candidate):", *(f"    {line}" for line in ast.unparse(body).split("\n"))]
    return json.dumps({"entry": entries[0], "tests": "\n".join([*setup, *check]), "prefix": ""})


def _deepcoder(tests: Any, row: Mapping[str, Any], most: int | None) -> str:
    """DeepCoder's parts: {functional: source}, {inputs, outputs, fn_name?}, or a list of {input, output, ...}."""
    found = json.loads(tests) if isinstance(tests, str) else tests
    match found:
        case {"functional": str(source)}:
            return leetcode_tests(source)
        case {"inputs": [*inputs], "outputs": [*outputs]}:
            cases = list(zip(inputs, outputs, strict=False))
            name = found.get("fn_name")
        case [_, *_] if all(isinstance(case, dict) and {"input", "output"} <= case.keys() for case in found):
            cases = [(case["input"], case["output"]) for case in found]
            name = _function(found[0], row)
        case _:
            raise ValueError(f"tests of an unknown form: {str(found)[:80]}")
    # The longest inputs are the hardest and the ones that slow solutions fail: as DeepCoder's own reward chooses.
    cases = sorted(cases, key=lambda case: -len(str(case[0])))[:most]
    if not cases:
        raise ValueError("no tests")
    if not name:
        return program_tests([(_joined(given), _joined(_lines(wanted))) for given, wanted in cases])
    calls = json.dumps([_call(given, wanted) for given, wanted in cases])
    # Solutions come as a method of LeetCode's class or as a plain function.
    entry = f"Solution().{name} if 'Solution' in globals() else {name}"
    return json.dumps({"entry": entry, "tests": _CALLS.format(cases=calls), "prefix": ""})


def _function(case: Mapping[str, Any], row: Mapping[str, Any]) -> str | None:
    """Name of the function to call; None for programs."""
    if case.get("type") == "function_call":
        return str(case.get("fn_name") or "") or None
    if case.get("testtype") != "functional":
        return None
    for metadata in (case.get("metadata"), row.get("metadata")):
        named = json.loads(metadata) if isinstance(metadata, str) and metadata else metadata
        if named and named.get("func_name"):
            return str(named["func_name"])
    return None  # some rows say functional and have only standard input and output


def _lines(wanted: Any) -> Any:
    """Lines of standard output, out of a list around the list of them."""
    return wanted[0] if isinstance(wanted, list) and len(wanted) == 1 and isinstance(wanted[0], list) else wanted


def _joined(part: Any) -> str:
    """Standard input or output, given as text or line by line."""
    return "\n".join(map(str, part)) if isinstance(part, list) else str(part)


def _call(given: Any, wanted: Any) -> tuple[list[Any], list[Any]]:
    """Arguments of a call and the results that count as right.

    LiveCodeBench writes both as JSON, an argument a line. TACO has plain values, the result within a list or not.
    """
    if not isinstance(given, str):
        return given, _accepted(wanted)
    arguments = [json.loads(line) for line in given.split("\n") if line.strip()]
    try:
        return arguments, [json.loads(wanted)]
    except (TypeError, ValueError):  # a plain value after all
        return arguments, _accepted(wanted)


def _accepted(wanted: Any) -> list[Any]:
    return [wanted, wanted[0]] if isinstance(wanted, list) and wanted else [wanted]


FORMS: dict[str, Callable[[Any, Mapping[str, Any], int | None], str]] = {
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "deepcoder": _deepcoder,
}
