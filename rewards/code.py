"""Reward for code: 1.0 if the response's last code block passes all tests of its problem in the sandbox, else 0.0.

The tests of a problem are a JSON string, so that they fit into one column of a data set. There are two forms.
For functions it is {"entry", "tests", "prefix"}: `tests` is source that defines check(candidate), `entry` is the
expression that gives the candidate, and `prefix` is put before the solution.
For programs it is {"tests": [[input, output], ...]}.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from rewards.sandbox import Sandbox, Verdict

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def code_of(completion: str) -> str:
    """The last complete fenced block. Empty if there is none: an unfinished response has no answer."""
    blocks = _BLOCK.findall(completion)
    return str(blocks[-1]) if blocks else ""


def leetcode_tests(text: str) -> str:
    """Tests of a DeepCoder row, whose text ends in check(EXPRESSION). Raises ValueError for any other text."""
    try:
        *body, last = ast.parse(text).body
        match last:
            case ast.Expr(ast.Call(ast.Name("check"), [entry], [])):
                tests = ast.unparse(ast.Module(body, []))
                return json.dumps({"entry": ast.unparse(entry), "tests": tests, "prefix": ""})
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"tests that are not Python: {error}") from error
    raise ValueError(f"tests that do not end in check(...): {text[-80:]!r}")


def humaneval_tests(row: dict[str, str]) -> str:
    """Tests of a HumanEval row. The tests and the solution may use the functions that the row's prompt defines."""
    prompt = row["prompt"]
    return json.dumps(
        {"entry": row["entry_point"], "tests": f"{prompt}\n{row['test']}", "prefix": f"{prompt}    pass\n"}
    )


def program_tests(cases: list[tuple[str, str]]) -> str:
    """Tests of a program. cases: (standard input, expected standard output), which is compared word by word."""
    return json.dumps({"tests": cases})


def job(source: str, tests: str) -> dict[str, Any]:
    """The job that the sandbox runs. Raises ValueError for tests of another form."""
    match json.loads(tests):
        case {"entry": str(entry), "tests": str(checks), "prefix": str(prefix)}:
            return {"source": prefix + source, "entry": entry, "tests": checks}
        case {"tests": [[_, _], *_] as cases}:
            return {"source": source, "tests": cases}
    raise ValueError(f"tests of an unknown form: {tests[:80]}")


class CodeReward:
    """Judges completions. `verdicts` holds the verdicts of the last call, with their reasons."""

    def __init__(self, sandbox: Sandbox):
        self.sandbox = sandbox
        self.verdicts: list[Verdict] = []

    def __call__(self, completions: list[str], tests: list[str]) -> list[float]:
        """1.0 or 0.0 for each completion against the tests at the same index."""
        sources = [code_of(completion) for completion in completions]
        self.verdicts = self.sandbox.run([job(*pair) for pair in zip(sources, tests, strict=True)])
        return [float(verdict.passed) for verdict in self.verdicts]

    def take_counts(self) -> dict[str, int]:
        """What went wrong since the last call: see rewards/workers.py."""
        return self.sandbox.take_counts()
