"""From a config of configs/data to a trainer's rows, with one line that says what was left out."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from datasets import Dataset

from experiments.problems import choose, files, hub
from experiments.problems.problem_set import Problem, problems_of
from experiments.run.errors import UserError


def check(data: Mapping[str, Any]) -> None:
    """Refuse what cannot be had, before any work is done. Raises UserError."""
    name = data["name"]
    if data["part"] not in choose.PARTS:
        raise UserError(f"data.part={data['part']}: choose {' or '.join(choose.PARTS)}")
    if not isinstance(data["held_out"], int | float) or not 0 <= data["held_out"] < 1:
        raise UserError(f"data.held_out={data['held_out']}: must be a share of the problems, from 0 to below 1")
    if data["part"] == "eval" and not data["held_out"]:
        raise UserError("data.part=eval: nothing is held out; set data.held_out too, say 0.1")
    for key in ("problems", "max_tests", "max_prompt_tokens"):
        if data[key] is not None and (not isinstance(data[key], int) or data[key] < 1):
            raise UserError(f"data.{key}={data[key]}: must be a whole number above 0, or null")
    if data["path"] is not None:
        if not Path(data["path"]).is_file():
            raise UserError(f"data.path={data['path']} does not exist, or is no file")
    elif data["hub"] is None:
        raise UserError(f"data={name}: data.path=FILE is missing ({', '.join(files.KINDS)})")
    else:
        hub.check(data["hub"]["id"], data["hub"]["revision"])


@lru_cache(maxsize=1)  # who trains on a set asks for it again after it was announced
def load(data_json: str, seed: int, room: int, policy: str, template_json: str) -> tuple[Dataset, str]:
    """Rows with `prompt`, `problem_id` and `answer` or `tests`, and one line about them.

    data_json: a config of configs/data. room: tokens that are left for a prompt. policy: whose tokenizer counts.
    template_json: arguments of its chat template. Raises UserError in one line for whatever is wrong with the set.
    """
    data = json.loads(data_json)
    limit = min(room, data["max_prompt_tokens"] or room)
    if limit < 1:
        raise UserError("engine.max_model_len leaves no room for a prompt beside trainer.max_completion_length")
    problems, left_out = problems_of(_rows(data), data)
    found = len(problems) + left_out.total()
    part = choose.part_of(problems, data["part"], data["held_out"])
    if len(part) < len(problems):
        left_out["of the other part"] = len(problems) - len(part)
    unfit = _unfit(data["judged_by"], limit, _counter(policy, json.loads(template_json)))
    drawn, passed_over = choose.draw(part, data["problems"], seed, unfit)
    said = f"data {data['name']}: {len(drawn)} problems of {found} rows{_listed('left out', left_out)}"
    said += _listed("passed over", passed_over)
    if not drawn or len(drawn) < (data["problems"] or 0):
        hint = " (room for a prompt: engine.max_model_len less trainer.max_completion_length)" if passed_over else ""
        raise UserError(f"{said}: too few for data.problems={data['problems'] or 'null'}{hint}")
    return Dataset.from_list([problem.row(data["judged_by"]) for problem in drawn]), said


def _rows(data: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    if data["path"] is not None:
        return files.rows(Path(data["path"]))
    source = data["hub"]
    return hub.rows(source["id"], source["subsets"], source["split"], source["revision"])


def _counter(policy: str, template: Mapping[str, Any]) -> Callable[[Problem], int]:
    """How many tokens a problem's prompt has, the chat template's own included."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)

    def count(problem: Problem) -> int:
        messages = [{"role": role, "content": content} for role, content in problem.messages]
        quiet = {"verbose": False}  # no warning about the very texts that are looked for
        return len(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, tokenizer_kwargs=quiet, **template
            )
        )

    return count


def _unfit(judged_by: str, limit: int, count: Callable[[Problem], int]) -> Callable[[Problem], str | None]:
    from rewards.maths import readable

    def unfit(problem: Problem) -> str | None:
        if count(problem) > limit:
            return f"longer than {limit} tokens"
        if judged_by == "maths" and not readable(problem.gold):
            return "with an answer that math-verify cannot read"
        return None

    return unfit


def _listed(what: str, counts: Counter[str]) -> str:
    return f"; {what}: {', '.join(f'{count} {why}' for why, count in sorted(counts.items()))}" if counts else ""
