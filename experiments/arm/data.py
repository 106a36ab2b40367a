"""Make the rows on which a run trains: generated problems, or a published set."""

import json
from collections.abc import Callable, Sequence
from typing import Any, Literal

from datasets import Dataset

from experiments import problem_sets
from experiments.policies.problems import PUZZLES, make_problems
from experiments.run.errors import UserError
from experiments.settings.config import RunConfig
from experiments.settings.groups import DataConfig, Programs, Puzzles, Words

Split = Literal["training", "evaluation"]
MADE = ("puzzles", "programs", "words")  # problems that are made here; all other sets are read


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
    if data.name in MADE:
        try:
            return Dataset.from_list(_generated(data, config.seed, split)), "", 0
        except ValueError as error:  # more problems than there are
            key = "data" if split == "training" else "eval"
            raise UserError(f"{key}.problems={data.problems}: {error}") from error
    room = config.engine.max_model_len - config.trainer.max_completion_length
    settings, template = json.dumps(data.given), json.dumps(config.trainer.chat_template_kwargs)
    return problem_sets.load(settings, config.seed, room, policy, template)


def _generated(data: DataConfig, seed: int, split: Split) -> list[dict[str, Any]]:
    """Make the rows of generated problems. Raises ValueError if more are asked for than exist."""
    assert data.problems is not None
    mix = frequencies(data)
    problems: Sequence[Any]
    if data.name == "words":
        from experiments.policies.words import make_word_problems

        problems = make_word_problems(data.problems, seed, mix, split=split)
    else:
        problems = make_problems(data.name, data.problems, seed, mix, split=split)
    column = "tests" if data.name == "programs" else "answer"
    return [
        {
            "prompt": [{"role": "user", "content": problem.question}],
            "problem_id": problem.problem_id,
            column: problem.answer,
        }
        for problem in problems
    ]


def frequencies(data: DataConfig) -> dict[Any, float]:
    """Return kind, or number of steps or events, of a generated problem -> relative frequency. Raises UserError for a
    kind that does not exist, for lists of unequal length, and if all are 0."""
    if isinstance(data, Puzzles):
        if unknown := sorted(data.kinds.keys() - PUZZLES.keys()):
            raise UserError(f"data.kinds: there is no kind {unknown[0]!r}, choose among {', '.join(PUZZLES)}")
        key, found = "kinds", dict[Any, float](data.kinds)
    else:
        assert isinstance(data, Programs | Words)
        name = "events" if isinstance(data, Words) else "chain_steps"
        lengths: list[int] = getattr(data, name)
        if len(lengths) != len(data.weights):
            raise UserError(f"data.{name} and data.weights must be equally long: a weight for each length of problem")
        key, found = "weights", dict(zip(lengths, data.weights, strict=True))
    if not any(found.values()):
        raise UserError(f"data.{key}={getattr(data, key)}: at least one must be above 0")
    return found
