"""Published problem sets, from the hub or from a local file, as the rows that a trainer takes.

Each row becomes a problem with a prompt, a stable id, and the data for the reward. Of a set, a number of problems is
used, from the training part or from the held-out part. Whether and in which order a problem is chosen depends only on a
hash of its id. So choices are the same on every machine and for any order of the rows, and training does not depend on
that order either. If a set gets new problems, the old ones stay in their parts.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from glob import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars, load_dataset
from datasets.exceptions import DatasetsError
from datasets.utils.logging import CRITICAL, set_verbosity
from huggingface_hub.errors import HTTPError

from experiments.run.errors import UserError
from rewards.checker import same_output
from rewards.forms import Unjudged, tests_of

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NAMED = 4  # problems that are named because their rows contradict each other
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

    @property
    def prompt(self) -> list[dict[str, str]]:
        """The conversation as TRL and chat templates take it."""
        return [{"role": role, "content": content} for role, content in self.messages]

    def row(self, judged_by: str) -> dict[str, Any]:
        """Return the row that TRL and the rewards take. judged_by: the kind of reward, a key of COLUMNS."""
        return {"prompt": self.prompt, "problem_id": self.problem_id, COLUMNS[judged_by]: self.gold}


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


def _lookup(row: Mapping[str, Any], columns: str | Sequence[str] | None) -> tuple[bool, Any]:
    """Return (True, value) for the first of these columns that the row has, or (False, None) if it has none.

    A dot in a name separates a column from a column nested in it.
    """
    for name in [columns] if isinstance(columns, str) else columns or []:
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
        wanted = columns if isinstance(columns, str) else " or ".join(columns)
        hint = ", or null for hashes" if purpose == "id" else ""
        raise UserError(
            f"{where} has no column {wanted}, it has {', '.join(row)}: set data.columns.{purpose}=NAME{hint}"
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


# ---- which problems are used ----


def share(key: str) -> float:
    """Return a number from 0 to 1 that depends only on the text `key`: a hash of it."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64


def part_of(problems: Sequence[Problem], part: str, held_out: float) -> list[Problem]:
    """Return the held-out problems (part "eval") or all others (part "train"). held_out: share of held-out problems.

    The choice does not depend on a seed, so no run trains on problems that another run holds out.
    """
    return [problem for problem in problems if (share(problem.problem_id) < held_out) == (part == "eval")]


def draw(
    problems: Sequence[Problem], count: int | None, seed: int, unfit: Callable[[Problem], str | None]
) -> tuple[list[Problem], Counter[str]]:
    """Return the first `count` usable problems (None: all), and how many were passed over for each reason.

    The seed decides the order of the problems. unfit: returns the reason why a problem cannot be used, or None.
    """
    passed_over: Counter[str] = Counter()
    drawn: list[Problem] = []
    for problem in sorted(problems, key=lambda problem: (share(f"{seed}/{problem.problem_id}"), problem.problem_id)):
        if len(drawn) == count:
            break
        reason = unfit(problem)
        if reason is None:
            drawn.append(problem)
        else:
            passed_over[reason] += 1
    return drawn, passed_over


# How the name of a file ends -> the reader of `datasets`.
KINDS = {".parquet": "parquet", ".jsonl": "json", ".json": "json", ".jsonl.gz": "json", ".json.gz": "json"}
# What `datasets` raises for a set that it cannot read. StopIteration: a file without rows; RuntimeError: a set that is
# a script.
_FAILURES = (OSError, EOFError, ValueError, TypeError, RuntimeError, StopIteration, DatasetsError, HTTPError)


def check(data: Mapping[str, Any]) -> None:
    """Raise UserError for a config whose data cannot be loaded. Call it before any work."""
    name = data["name"]
    if data["part"] == "eval" and not data["held_out"]:
        raise UserError("data.part=eval: no problems are held out; also set data.held_out, for example to 0.1")
    if data["path"] is not None:
        if not Path(data["path"]).is_file():
            raise UserError(f"data.path={data['path']} does not exist, or is no file")
        if not data["path"].endswith(tuple(KINDS)):
            raise UserError(f"data.path={data['path']}: the name must end in one of {', '.join(KINDS)}")
    elif data["hub"] is None:
        raise UserError(f"data={name}: data.path=FILE is missing ({', '.join(KINDS)})")


@lru_cache(maxsize=2)  # a run loads each of its two sets (training, evaluation) twice: to announce it, to use it
def load(data_json: str, seed: int, room: int, policy: str, template_json: str) -> tuple[Dataset, str, int]:
    """Return rows with `prompt`, `problem_id` and `answer` or `tests`, one line about them, and the number passed over.

    A problem is passed over if it cannot be used. data_json: a config of configs/data. room: the most tokens of a
    prompt. policy: folder or name of the policy, whose tokenizer counts tokens. template_json: arguments of its chat
    template. Raises UserError if anything is wrong with the set, or if it has too few problems.
    """
    data = json.loads(data_json)
    limit = min(room, data["max_prompt_tokens"] or room)
    problems, left_out = problems_of(_rows(data), data)
    num_rows = len(problems) + left_out.total()
    part = part_of(problems, data["part"], data["held_out"])
    if len(part) < len(problems):
        left_out["of the other part"] = len(problems) - len(part)
    unfit = _unfit(data["judged_by"], limit, policy, json.loads(template_json))
    drawn, passed_over = draw(part, data["problems"], seed, unfit)
    summary = f"data {data['name']}: {len(drawn)} problems of {num_rows} rows{_listed('left out', left_out)}"
    summary += _listed("passed over", passed_over)
    if not drawn or len(drawn) < (data["problems"] or 0):
        hint = " (room for a prompt: engine.max_model_len less trainer.max_completion_length)" if passed_over else ""
        raise UserError(f"{summary}: too few for data.problems={data['problems'] or 'null'}{hint}")
    return Dataset.from_list([problem.row(data["judged_by"]) for problem in drawn]), summary, passed_over.total()


def _rows(data: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Read the rows of the set as published, from a local file or from the hub, with `datasets`, which runs no code of
    the set. Raises UserError if that fails."""
    disable_progress_bars()
    set_verbosity(CRITICAL)  # what fails is in the one line below
    path, hub = data["path"], data["hub"]
    try:
        if path is not None:
            kind = next(KINDS[end] for end in KINDS if path.endswith(end))
            parts = [load_dataset(kind, data_files=escape(path), split="train")]
        else:
            where = {"split": hub["split"], "revision": hub["revision"]}
            parts = [load_dataset(hub["id"], subset, **where) for subset in hub["subsets"]]
        return [row for part in parts for row in part]
    except _FAILURES as error:
        reason = " ".join(str(error.__cause__ or error).split())[:300] or "it has no rows"
        if path is not None:
            raise UserError(f"data.path={path} cannot be read: {reason}") from error
        raise UserError(
            f"{hub['id']} cannot be loaded: {reason}; for a copy on disk set data.path=FILE ({', '.join(KINDS)})"
        ) from error


def _unfit(judged_by: str, limit: int, policy: str, template: Mapping[str, Any]) -> Callable[[Problem], str | None]:
    """Return a function that maps a problem to the reason why it cannot be used, or to None. limit: the most tokens of
    a prompt, with those of the policy's chat template. template: its arguments."""
    from transformers import AutoTokenizer

    from rewards.maths import readable

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)
    # No warning about long texts: this function is there to find them.
    options = {"add_generation_prompt": True, "return_dict": False, "tokenizer_kwargs": {"verbose": False}, **template}

    def unfit(problem: Problem) -> str | None:
        if len(tokenizer.apply_chat_template(problem.prompt, **options)) > limit:
            return f"longer than {limit} tokens"
        if judged_by == "maths" and not readable(problem.gold):
            return "with an answer that math-verify cannot read"
        return None

    return unfit


def _listed(heading: str, counts: Counter[str]) -> str:
    """Return counts of reasons as text: "; heading: 3 reason, 4 other reason". Empty if there are no counts."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return f"; {heading}: {reasons}" if counts else ""
