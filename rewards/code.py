"""Reward for code: 1.0 if the response's last code block passes all tests of its problem in the sandbox, else 0.0.

The tests of a problem are a JSON string, so that they fit into one column of a data set. The string has one of two
forms. For functions it is {"entry", "tests"}: `tests` is source code that defines check(candidate), and `entry` is an
expression whose value is the candidate.
For programs it is {"tests": [[input, output], ...]}.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rewards.answers import MAX_CHARACTERS, THINK, THOUGHT
from rewards.sandbox import Sandbox, Verdict

_TILDES = re.compile(r"(?<![`~])~{3,}")
_LANGUAGE = re.compile(r"[ \t]*([\w+#-]*)")
_PYTHON = ("", "python", "python3", "py", "py3")


def _opening(line: str) -> slice | None:
    """Return where the first fence stands in a line that no backtick follows. None if there is none.

    A fence is three backticks or tildes or more, with neither of them before it. Only the line's last backticks and the
    tildes behind them can be such a fence, so no other characters are tried.
    """
    stop = line.rfind("`") + 1
    start = len(line[:stop].rstrip("`"))
    if stop - start >= 3 and line[start - 1 : start] != "~":
        return slice(start, stop)
    tildes = _TILDES.search(line, stop)
    return slice(*tildes.span()) if tildes else None


@dataclass
class _Block:
    """A fenced block whose lines are being read."""

    fence: str
    indent: str
    python: bool
    lines: list[str] = field(default_factory=list)

    @classmethod
    def opened_by(cls, line: str) -> _Block | None:
        """Return the block that this line opens, or None. line: a line outside of all blocks. If other text precedes
        the fence, the line opens a block only if the block's language is Python or not given."""
        fence = _opening(line)
        if fence is None:
            return None
        before, after = line[: fence.start], line[fence.stop :]
        word = _LANGUAGE.match(after)
        assert word is not None  # it may be empty
        python = word[1].lower() in _PYTHON and (bool(word[1]) or not after.strip())
        at_start = not before.strip()
        if not at_start and (not python or line[fence.start] == "~" or before.count("```") % 2):
            return None
        return cls(line[fence], before if at_start else "", python)

    def behind_end(self, line: str) -> str | None:
        """Return the text behind the fence if a line closes this block: it starts with the fence, and what follows is
        no language, as in ```</answer> or ``` is my answer. None if it does not."""
        rest = line.strip()
        behind = rest.lstrip(self.fence[0])
        word = _LANGUAGE.match(behind)
        assert word is not None  # it may be empty
        opens = word[1] and (word[1].lower() in _PYTHON or not behind[word.end() :].strip())
        return None if opens or len(rest) - len(behind) < len(self.fence) else behind

    def is_ended_by(self, line: str) -> bool:
        """Return whether a line opens another block. If so, this block closed inside an earlier line, or never."""
        return line.strip().startswith(self.fence) and self.behind_end(line) is None

    def text(self) -> str:
        """The block's text. The indentation of its fence is removed, if all lines have it."""
        if all(line.startswith(self.indent) for line in self.lines if line.strip()):
            return "".join(f"{line.removeprefix(self.indent)}\n" for line in self.lines)
        return "".join(f"{line}\n" for line in self.lines)


def code_of(completion: str) -> str:
    """Return the last complete fenced block whose language is Python or not given. Empty if there is none, or if the
    response has more than MAX_CHARACTERS (rewards/answers.py).

    So an unfinished response has no answer, and neither has a thought without end: the blocks behind a line that begins
    with <think> do not count unless </think> follows. A block ends at a line that starts with its fence. If there is no
    such line, the block ends at its fence in the middle of a line.
    """
    answer = ""
    before_thought: str | None = None  # the answer so far, while a thought goes on
    if len(completion) > MAX_CHARACTERS:
        return answer
    block: _Block | None = None
    for line in [*completion.replace("\r\n", "\n").split("\n"), None]:
        if line is not None and block is None and before_thought is None and line.lstrip().startswith(THINK):
            before_thought = answer
        if line is not None and THOUGHT in line:
            before_thought = None
        if block is not None and line is not None and (behind := block.behind_end(line)) is not None:
            answer, block = block.text() if block.python else answer, _Block.opened_by(behind)
            continue
        if block is not None and (line is None or block.is_ended_by(line)):
            code, fence, _ = block.text().partition(block.fence)
            answer, block = code if fence and block.python else answer, None
        if line is None:
            break
        if block is None:
            block = _Block.opened_by(line)
        else:
            block.lines.append(line)
    return answer if before_thought is None else before_thought


class _Nearly(ast.NodeTransformer):
    """Changes `assert CALL == VALUE`, where the value has floats, so that results within 1e-6 count as equal."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        match node.test:
            case ast.Compare(ast.Call() as call, [ast.Eq()], [value]) if any(map(_is_float, ast.walk(value))):
                node.test = ast.Call(ast.Name("same_value", ast.Load()), [call, value], [])
        return node


def _is_float(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def leetcode_tests(text: str) -> str:
    """Convert the tests of a DeepCoder row. text: ends in check(EXPRESSION). Raises ValueError for any other text.

    Floats are compared within 1e-6, as LeetCode says of its problems and LiveCodeBench's checker does.
    """
    try:
        *body, last = ast.parse(text).body
        match last:
            case ast.Expr(ast.Call(ast.Name("check"), [entry], [])):
                tests = ast.unparse(_Nearly().visit(ast.Module(body, [])))
                return json.dumps({"entry": ast.unparse(entry), "tests": tests})
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"tests that are not Python: {error}") from error
    raise ValueError(f"tests that do not end in check(...): {text[-80:]!r}")


def program_tests(cases: list[tuple[str, str]]) -> str:
    """Convert the tests of a program. cases: (standard input, expected standard output), compared by
    rewards/checker.py."""
    return json.dumps({"tests": cases})


def job(source: str, tests: str) -> dict[str, Any]:
    """Make the job that the sandbox runs. source: the solution. tests: JSON. Raises ValueError for unknown forms."""
    match json.loads(tests):
        case {"entry": str(entry), "tests": str(checks)}:
            return {"source": source, "entry": entry, "tests": checks}
        case {"tests": [[_, _], *_] as cases}:
            return {"source": source, "tests": cases}
    raise ValueError(f"tests of an unknown form: {tests[:80]}")


class CodeReward(Sandbox):
    """Judges completions by tests. The attribute `verdicts` holds the verdicts of the last call, with reasons."""

    verdicts: Sequence[Verdict] = ()

    def __call__(self, completions: list[str], tests: list[str]) -> list[float]:
        """Return 1.0 or 0.0 for each completion, judged by the tests at the same index."""
        sources = [code_of(completion) for completion in completions]
        self.verdicts = self.run([job(*pair) for pair in zip(sources, tests, strict=True)])
        return [float(verdict.passed) for verdict in self.verdicts]
