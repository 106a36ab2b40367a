"""Load the problem set that a config of configs/data names, as rows for a trainer."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from glob import escape
from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars, load_dataset
from datasets.exceptions import DatasetsError
from datasets.utils.logging import CRITICAL, set_verbosity
from huggingface_hub.errors import HTTPError

from experiments.problems import choose
from experiments.problems.problem_set import Problem, problems_of
from experiments.run.errors import UserError

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
    if limit < 1:
        raise UserError("engine.max_model_len leaves no room for a prompt beside trainer.max_completion_length")
    problems, left_out = problems_of(_rows(data), data)
    num_rows = len(problems) + left_out.total()
    part = choose.part_of(problems, data["part"], data["held_out"])
    if len(part) < len(problems):
        left_out["of the other part"] = len(problems) - len(part)
    unfit = _unfit(data["judged_by"], limit, prompt_counter(policy, json.loads(template_json)))
    drawn, passed_over = choose.draw(part, data["problems"], seed, unfit)
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


def prompt_counter(policy: str, template: Mapping[str, Any]) -> Callable[[Problem], int]:
    """Return a function that counts the tokens of a problem's prompt, including the chat template's tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)

    def count(problem: Problem) -> int:
        messages = [{"role": role, "content": content} for role, content in problem.messages]
        quiet = {"verbose": False}  # no warning about long texts: this function is there to find them
        return len(
            tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_dict=False, tokenizer_kwargs=quiet, **template
            )
        )

    return count


def _unfit(judged_by: str, limit: int, count: Callable[[Problem], int]) -> Callable[[Problem], str | None]:
    """Return a function that maps a problem to the reason why it cannot be used, or to None. limit: the most tokens of
    a prompt. count: counts a prompt's tokens."""
    from rewards.maths import readable

    def unfit(problem: Problem) -> str | None:
        if count(problem) > limit:
            return f"longer than {limit} tokens"
        if judged_by == "maths" and not readable(problem.gold):
            return "with an answer that math-verify cannot read"
        return None

    return unfit


def _listed(heading: str, counts: Counter[str]) -> str:
    """Return counts of reasons as text: "; heading: 3 reason, 4 other reason". Empty if there are no counts."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
    return f"; {heading}: {reasons}" if counts else ""
