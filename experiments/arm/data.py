"""Make the rows on which a run trains: generated problems, or a published set; their prompts as token ids; and read the
recorded responses that arms emit in place of what they sample (task.recorded), so that they are timed on real text.

Recorded tokens are numbered anew without gaps, so any policy with enough tokens can emit them.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from datasets import Dataset

from experiments import problem_sets
from experiments.policies.problems import Asked, make_problems
from experiments.policies.words import make_word_problems
from experiments.run.errors import UserError
from experiments.settings.config import RunConfig, steps_per_epoch
from experiments.settings.groups import DataConfig, MadeData
from experiments.simulate.rollouts import responses_of

Split = Literal["training", "evaluation"]


def dataset(config: RunConfig, policy: str, note: Callable[[str], None] | None = None) -> Dataset:
    """Make rows with `prompt` (a conversation), `problem_id`, and the reward's columns, such as `answer` or `tests`.

    policy: its tokenizer measures prompts. note: called with one line about the problems that a published set loses.
    Raises UserError if there are fewer problems than the settings ask for, or than a step takes.
    """
    rows, summary, _ = split_rows(config.data, "training", config, policy)
    if note is not None and summary:
        note(summary)
    if len(rows) < config.problems_per_step:
        raise UserError(f"{summary}; a step takes {config.problems_per_step}")
    return rows


def split_rows(data: DataConfig, split: Split, config: RunConfig, policy: str) -> tuple[Dataset, str, int]:
    """Return the rows of a set, one line about it (empty for generated problems), and how many problems are unusable.

    Most unusable problems are too long (`room`), so the rows are easier than the whole set. split: which generated
    problems to make; for a published set the setting `part` chooses the problems instead.
    """
    if isinstance(data, MadeData):
        try:
            return Dataset.from_list(_generated(data, config.seed, split)), "", 0
        except ValueError as error:  # more problems than there are
            key = "data" if split == "training" else "eval"
            raise UserError(f"{key}.problems={data.problems}: {error}") from error
    room = config.engine.max_model_len - config.trainer.max_completion_length
    settings, template = json.dumps(data.given), json.dumps(config.trainer.chat_template_kwargs)
    return problem_sets.load(settings, config.seed, room, policy, template)


def _generated(data: MadeData, seed: int, split: Split) -> list[dict[str, Any]]:
    """Make the rows of generated problems. Raises ValueError if more are asked for than exist."""
    problems: Sequence[Asked]
    if data.name == "words":
        problems = make_word_problems(data.problems, seed, data.mix, split=split)
    else:
        problems = make_problems(data.name, data.problems, seed, data.mix, split=split)
    column = problem_sets.COLUMNS[data.judged_by]
    return [
        {
            "prompt": [{"role": "user", "content": problem.question}],
            "problem_id": problem.problem_id,
            column: problem.answer,
        }
        for problem in problems
    ]


# ---- prompts ----

Prompt = dict[str, list[int]]  # {"prompt_token_ids": token ids}, as vLLM takes it


def tokenized(config: RunConfig, policy: str) -> list[tuple[str, Prompt]]:
    """Return (problem id, prompt) of every problem of the data. policy: its tokenizer is used."""
    return tokenized_rows(config, policy, dataset(config, policy))


def tokenized_rows(config: RunConfig, policy: str, rows: Iterable[dict[str, Any]]) -> list[tuple[str, Prompt]]:
    """Return (problem id, prompt) of every row. policy: its tokenizer is used."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)
    options = {"add_generation_prompt": True, "return_dict": False, **config.trainer.chat_template_kwargs}
    return [
        (row["problem_id"], {"prompt_token_ids": tokenizer.apply_chat_template(row["prompt"], **options)})
        for row in rows
    ]


# ---- recorded responses ----

Text = list[int]  # the token ids of a response


def is_recorded(config: RunConfig) -> bool:
    """Return whether the arms of this run emit recorded responses."""
    return getattr(config.task, "recorded", None) is not None


def recorded_texts(config: RunConfig, end: int) -> list[list[Text]]:
    """Return the responses to each problem of the data: to its first visit, then to its next, and so on.

    end: the token that ends a response, and occurs nowhere else. All responses are cut to the same fraction of their
    length, so that the longest has trainer.max_completion_length tokens. Raises UserError if the recording has too few
    problems with enough responses.
    """
    trainer, problems = config.trainer, config.data.problems
    if problems is None:
        raise UserError("data.problems=null: say how many problems of task.recorded are rolled out")
    visits = -(-trainer.max_steps // steps_per_epoch(problems, config.problems_per_step))
    path, wanted = Path(config.task.recorded), trainer.num_generations * visits
    return texts_of(path, problems, wanted, trainer.max_completion_length, end)


def texts_of(path: Path, problems: int, responses: int, longest: int, end: int) -> list[list[Text]]:
    """Return the first `responses` responses to each of the first `problems` problems that have so many.

    longest: tokens of the longest one; all are cut to the same fraction of their length. end: see recorded_texts.
    """
    enough = [texts for texts in responses_of(path).values() if len(texts) >= responses]
    if len(enough) < problems:
        raise UserError(
            f"task.recorded={path}: {len(enough)} problems have {responses} responses, and {problems} are needed: "
            "lower data.problems, trainer.num_generations or trainer.max_steps, or take another recording"
        )
    chosen = [texts[:responses] for texts in enough[:problems]]
    fraction = min(1.0, (longest - 1) / max(len(text) for texts in chosen for text in texts))
    cut = [[text[: max(1, round(len(text) * fraction))] for text in texts] for texts in chosen]
    used = np.unique(np.concatenate([text for texts in cut for text in texts]))
    numbers = np.arange(len(used)) + (np.arange(len(used)) >= end)
    return [[[*numbers[np.searchsorted(used, text)].tolist(), end] for text in texts] for texts in cut]


def vocabulary_of(texts: list[list[Text]]) -> int:
    """Return how many tokens a policy must have to emit these texts."""
    return 1 + max(max(text) for of_problem in texts for text in of_problem)


def check_vocabulary(config: RunConfig, policy: str) -> None:
    """Refuse a policy that knows fewer tokens than the recorded text has. Raises UserError. policy: a hub id is not
    checked."""
    from transformers import AutoTokenizer

    path = Path(policy) / "config.json"
    if not path.exists():
        return
    known = json.loads(path.read_text())["vocab_size"]
    end = AutoTokenizer.from_pretrained(policy, trust_remote_code=False).eos_token_id
    needed = vocabulary_of(recorded_texts(config, end))
    if needed > known:
        raise UserError(
            f"task.recorded={config.task.recorded}: its text has {needed} different tokens, the policy knows {known}; "
            "set policy=random, which makes weights for them"
        )


def by_problem(config: RunConfig, tokenizer: Any, rows: Any) -> dict[str, list[Text]]:
    """Return problem id -> its recorded responses, for the rows of the data."""
    ids = list(dict.fromkeys(row["problem_id"] for row in rows))
    return dict(zip(ids, recorded_texts(config, tokenizer.eos_token_id), strict=True))
