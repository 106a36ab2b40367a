"""Choose the problems on which a training is evaluated (`eval.*`), and the reward that judges the responses."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from datasets import Dataset

from experiments import problem_sets
from experiments.arm.data import MADE, split_rows
from experiments.arm.pass_at_k import powers_of_two
from experiments.arm.reward import check_judge
from experiments.run.errors import UserError
from experiments.settings.checked import plain
from experiments.settings.compose import group_settings
from experiments.settings.config import RunConfig
from experiments.settings.groups import DATA, REWARD, DataConfig, RewardConfig

EVAL_KEYS = {"data.problems": "eval.problems", "data.path": "eval.path"}


def check(config: RunConfig) -> None:
    """Refuse settings `eval` that are impossible in this run. Raises UserError with a one-line message."""
    if not config.eval.every:
        return
    ks_of(config.eval.k, config.eval.samples, "eval")
    data = held_out_data(config)
    with renamed_keys(EVAL_KEYS):
        if data.name not in MADE:
            problem_sets.check(data.given)
    check_judge(judge_config(config.reward, data))


def ks_of(k: Sequence[int] | None, samples: int, group: str) -> list[int]:
    """Return the values of k for pass@k, smallest first and always with 1.

    k: the setting; None: powers of two. group: the name of the group of `k` and `samples`, for the error. Raises
    UserError for a k above the number of samples.
    """
    if k is not None and max(k, default=1) > samples:
        raise UserError(f"{group}.k={list(k)}: pass@{max(k)} needs {group}.samples={max(k)} or more, not {samples}")
    return sorted({1, *(powers_of_two(samples) if k is None else k)})


def temperature_of(config: RunConfig) -> float:
    """Return the temperature at which responses are evaluated; 0: greedy."""
    return config.trainer.temperature if config.eval.temperature is None else config.eval.temperature


def alike(config: RunConfig, samples: int, key: str) -> str:
    """Return a line for the user if all responses to a problem are alike. Empty if they are not. samples: number of
    responses to a problem. key: the setting that says so."""
    if temperature_of(config) or samples == 1:
        return ""
    return f"at temperature 0 the {samples} responses to a problem are alike: {key}=1 says as much"


def held_out_data(config: RunConfig) -> DataConfig:
    """Return the settings of the data set on which to evaluate. Raises UserError if the settings `eval` choose none."""
    wanted = config.eval
    if wanted.data is not None:
        settings = plain(group_settings("data", wanted.data, "eval.data"))
        if wanted.path is not None and wanted.data in MADE:
            raise UserError(f"eval.path={wanted.path}: problems of eval.data={wanted.data} are made, not read")
        settings |= {"path": wanted.path} if wanted.path is not None else {}
    else:
        settings = config.data.given
        if wanted.path is not None:
            raise UserError(f"eval.path={wanted.path}: also say which set it holds, eval.data=NAME")
        if config.data.name not in MADE:
            if not settings["held_out"] or settings["part"] == "eval":
                raise UserError(
                    f"eval.every={wanted.every}: nothing to evaluate on; hold problems out (data.held_out=0.1 "
                    "data.part=train), or choose another set (eval.data=NAME)"
                )
            settings["part"] = "eval"
    data: DataConfig = DATA.made({**settings, "problems": wanted.problems})
    if data.problems is None and data.name in MADE:
        raise UserError("eval.problems=null: must be a whole number, because generated problems have no end")
    return data


def judge_config(reward: RewardConfig, data: DataConfig) -> RewardConfig:
    """Return the reward that judges responses: the reward of the set, even if the training has another reward."""
    if reward.name == data.judged_by:
        return reward
    judge: RewardConfig = REWARD.made(plain(group_settings("reward", data.judged_by)))
    return judge


def held_out(config: RunConfig, policy: str, training: Dataset, note: Callable[[str], None] | None = None) -> Dataset:
    """Make the rows to evaluate on, in the same form as the rows of the training.

    training: rows of the training. note: called with one line about the problems that were left out. Raises UserError
    if a problem is in both sets of rows.
    """
    data = held_out_data(config)
    with renamed_keys(EVAL_KEYS):
        rows, summary, _ = split_rows(data, "evaluation", config, policy)
    for line in (summary, alike(config, config.eval.samples, "eval.samples")):
        if note is not None and line:
            note(f"evaluation: {line}")
    trained_on = {key for row in training for key in _keys(row)}
    shared = [row["problem_id"] for row in rows if not trained_on.isdisjoint(_keys(row))]
    if shared:
        raise UserError(
            f"eval.data={data.name}: {len(shared)} of its {len(rows)} problems are trained on too, such as "
            f"{shared[0]}; choose another set, or hold problems out (data.held_out=0.1 eval.data=null)"
        )
    return rows


def _keys(row: dict[str, Any]) -> tuple[str, str]:
    """Two keys of a problem: its id, and its question with normalised white space. Two problems are the same if they
    share a key."""
    return f"id {row['problem_id']}", " ".join(row["prompt"][-1]["content"].split())


@contextmanager
def renamed_keys(names: Mapping[str, str]) -> Iterator[None]:
    """In the `with` block, errors about a set name the keys that the user can set. names: key that an error names ->
    key to name in its place."""
    try:
        yield
    except UserError as error:
        text = str(error)
        for key, chosen in names.items():
            text = text.replace(key, chosen)
        raise UserError(text) from error
