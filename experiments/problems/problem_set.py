"""Turn the rows of any published set into problems with a prompt, a stable id, and the data for the reward.

Nothing here depends on the order of the rows, so training does not depend on it either.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from experiments.run.errors import UserError
from rewards.checker import same_output
from rewards.forms import Unjudged, tests_of

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NAMED = 4  # problems that are named because their rows contradict each other
Message = dict[str, str]
COLUMNS = {"maths": "answer", "code": "tests"}  # reward -> the column that it reads


@dataclass(frozen=True)
class Problem:
    """One problem of a published set, in the form that a training needs.

    problem_id: the set's name, followed by the set's own id or a hash of the question. messages: (role, content) pairs,
    the conversation up to the answer. text: the question as in the set. gold: the answer or the tests, in the form that
    the reward takes.
    """

    problem_id: str
    messages: tuple[tuple[str, str], ...]
    text: str
    gold: str

    def row(self, judged_by: str) -> dict[str, Any]:
        """Return the row that TRL and the rewards take. judged_by: the kind of reward, a key of COLUMNS."""
        prompt: list[Message] = [{"role": role, "content": content} for role, content in self.messages]
        return {"prompt": prompt, "problem_id": self.problem_id, COLUMNS[judged_by]: self.gold}


def problems_of(rows: Iterable[Mapping[str, Any]], data: Mapping[str, Any]) -> tuple[list[Problem], Counter[str]]:
    """Return the distinct problems, and the number of rows that were left out for each reason.

    The order of the problems is the same for any order of the rows. data: a config of configs/data. Raises UserError
    for columns that are missing or hold values of a wrong kind.
    """
    left_out: Counter[str] = Counter()
    with_duplicates = []
    count = 0
    for count, row in enumerate(rows, start=1):
        problem = _problem(row, data, f"data={data['name']}: row {count}")
        if isinstance(problem, Problem):
            with_duplicates.append(problem)
        else:
            left_out[problem] += 1
    if not count:
        raise UserError(f"data={data['name']} has no rows")
    with_duplicates.sort(key=lambda problem: (problem.problem_id, problem.gold, problem.messages))
    of_question: dict[str, list[Problem]] = {}
    for problem in with_duplicates:
        of_question.setdefault(" ".join(problem.text.split()), []).append(problem)
    problems: list[Problem] = []
    disputed: list[str] = []
    for equal in of_question.values():
        if _contradict([problem.gold for problem in equal], data["judged_by"]):
            disputed += [problem.problem_id for problem in equal]
        else:
            problems.append(equal[0])
            left_out["duplicates"] += len(equal) - 1
    if disputed:
        names = list(dict.fromkeys(disputed))
        shown = ", ".join(names[:_NAMED] + ["..."] * (len(names) > _NAMED))
        left_out[f"with different answers to one question ({shown})"] = len(disputed)
    left_out += Counter()  # without what was not found
    problems.sort(key=lambda problem: problem.problem_id)
    for one, other in pairwise(problems):
        if one.problem_id == other.problem_id:
            raise UserError(
                f"data={data['name']}: two problems have the id {one.problem_id}: set data.columns.id=null for hashes"
            )
    return problems, left_out


def _contradict(golds: Sequence[str], judged_by: str) -> bool:
    """Return whether the golds of one question exclude each other: answers that are not equal, or tests of programs
    that expect different outputs for an input. If they do not, one of them can stand for all."""
    if len(set(golds)) < 2:
        return False
    if judged_by == "maths":
        from rewards.maths import equal_golds

        return not all(equal_golds(golds[0], gold) for gold in golds[1:])
    cases = [case for gold in golds if isinstance(tests := json.loads(gold)["tests"], list) for case in tests]
    first_output: dict[str, str] = {}
    return not all(same_output(output, first_output.setdefault(stdin, output)) for stdin, output in cases)


def _problem(row: Mapping[str, Any], data: Mapping[str, Any], where: str) -> Problem | str:
    """Return the problem of a row, or the reason why the row has none. where: names the row in error messages."""
    columns = data["columns"]
    system, text = _question(_cell(row, columns["problem"], "problem", where), where)
    if not text.strip():
        return "without a question"
    if data["judged_by"] == "maths":
        gold = _answer(_cell(row, columns["answer"], "answer", where), data["answer_after"], where)
        if not gold:
            return "without an answer"
        ending = None
    else:
        tests = _cell(row, columns["tests"], "tests", where)
        try:
            gold = tests_of(tests, row, data["max_tests"])
        except Unjudged as reason:
            return str(reason)
        except ValueError:
            return "with tests that cannot be judged"
        ending = _ending(row, columns["starter"], data, gold)
    prompt = _filled(data["prompt"] + (ending or ""), row, text, where)
    system = data["system"] or system
    messages = (("system", system), ("user", prompt)) if system else (("user", prompt),)
    return Problem(f"{data['name']}-{_id_in_set(row, columns['id'], text, where)}", messages, text, gold)


def _names(columns: str | Sequence[str]) -> list[str]:
    return [columns] if isinstance(columns, str) else list(columns)


def _lookup(row: Mapping[str, Any], columns: str | Sequence[str] | None) -> tuple[bool, Any]:
    """Return (True, value) for the first of these columns that the row has, or (False, None) if it has none.

    A dot in a name separates a column from a column nested in it.
    """
    for name in _names(columns or []):
        value: Any = row
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                break
            value = value[part]
        else:
            return True, value
    return False, None


def _cell(row: Mapping[str, Any], columns: str | Sequence[str], purpose: str, where: str) -> Any:
    """Return the value of the first of these columns that the row has. purpose: the key of data.columns for them."""
    exists, value = _lookup(row, columns)
    if not exists:
        raise UserError(
            f"{where} has no column {' or '.join(_names(columns))}, it has {', '.join(row)}: "
            f"set data.columns.{purpose}=NAME" + (", or null for hashes" if purpose == "id" else "")
        )
    return value


def _question(value: Any, where: str) -> tuple[str | None, str]:
    """Return (system prompt or None, question). value: a text, or a conversation that ends in the question."""
    if value is None:
        return None, ""
    if isinstance(value, str):
        return None, value
    match value:
        case [{"role": "user", "content": str(text)}]:
            return None, text
        case [{"role": "system", "content": str(system)}, {"role": "user", "content": str(text)}]:
            return system, text
    raise UserError(
        f"{where}: the problem is a {type(value).__name__}, not a text or a conversation with one question: "
        "set data.columns.problem=NAME"
    )


def _answer(value: Any, after: str | None, where: str) -> str:
    """Return the gold answer as text: the part of the value after `after`. Empty if there is no answer."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UserError(f"{where}: the answer is a {type(value).__name__}, not a text: set data.columns.answer=NAME")
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    answer = str(value)
    if after is not None:
        if after not in answer:
            raise UserError(f"{where}: the answer has no {after!r} before its result: set data.answer_after=null")
        answer = answer.rsplit(after, 1)[1]
    return answer.strip()


def _id_in_set(row: Mapping[str, Any], columns: str | Sequence[str] | None, text: str, where: str) -> str:
    """Return the set's own id of a problem. For a set without ids, return a hash of the question."""
    if columns is None:
        return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:16]
    value = _cell(row, columns, "id", where)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UserError(f"{where}: the id is a {type(value).__name__}: set data.columns.id=NAME, or null for hashes")
    return str(value)


def _ending(row: Mapping[str, Any], starter: str | None, data: Mapping[str, Any], tests: str) -> str | None:
    """Return the instructions that follow a question: to complete starter code, or to write a program that reads
    standard input. None if there are none."""
    exists, value = _lookup(row, starter)
    if exists and value:
        return str(data["with_starter"] or "")
    return None if tests.startswith('{"entry"') else data["as_program"]


def _filled(template: str, row: Mapping[str, Any], text: str, where: str) -> str:
    """Return the template with {problem} replaced by the question, and every {column} by the value of that column.

    If the value is a list, each item has its own line.
    """

    def fill(match: re.Match[str]) -> str:
        if match[1] == "problem":
            return text
        if match[1] not in row:
            raise UserError(f"{where} has no column {match[1]}, which data.prompt names; it has {', '.join(row)}")
        value = row[match[1]]
        return "\n".join(map(str, value)) if isinstance(value, list) else str(value)

    return _PLACEHOLDER.sub(fill, template)
