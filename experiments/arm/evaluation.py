"""Measure a policy on problems: choose them (`eval.*`), sample responses, judge them, estimate pass@k.

pass@k is the chance that at least one of k responses to a problem is right. The estimate is unbiased (Chen et al.
2021): of n responses with c right ones, 1 - C(n-c, k) / C(n, k) is the share of all sets of k that hold a right one.

`Evaluation` makes requests and judges responses; task=evaluate uses it directly. `TrainingEvaluation` uses it every few
steps of a training.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import comb, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from datasets import Dataset

from das.engine.rollouts.rollout import Rollout, RolloutRequest, evaluation_seed
from experiments import problem_sets
from experiments.arm.data import Prompt, split_rows, tokenized_rows
from experiments.arm.reward import check_judge, make_reward
from experiments.digests import digest
from experiments.run.errors import UserError
from experiments.settings.checked import plain
from experiments.settings.compose import group_settings
from experiments.settings.config import RunConfig
from experiments.settings.groups import DATA, REWARD, DataConfig, MadeData, ProblemSet, RewardConfig
from rewards.conversations import ConversationReward
from rewards.reward import RewardError

EVAL_KEYS = {"data.problems": "eval.problems", "data.path": "eval.path"}


def check(config: RunConfig) -> None:
    """Refuse settings `eval` that are impossible in this run. Raises UserError with a one-line message."""
    if not config.eval.every:
        return
    ks_of(config.eval.k, config.eval.samples, "eval")
    data = held_out_data(config)
    with renamed_keys(EVAL_KEYS):
        if isinstance(data, ProblemSet):
            problem_sets.check(data.given)
    check_judge(judge_config(config.reward, data))


def ks_of(k: Sequence[int] | None, samples: int, group: str) -> list[int]:
    """Return the values of k for pass@k, smallest first and always with 1.

    k: the setting; None: powers of two. group: the name of the group of `k` and `samples`, for the error. Raises
    UserError for a k above the number of samples.
    """
    if k is not None and max(k, default=1) > samples:
        raise UserError(f"{group}.k={list(k)}: pass@{max(k)} needs {group}.samples={max(k)} or more, not {samples}")
    return sorted({1, *([1 << power for power in range(samples.bit_length())] if k is None else k)})


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
        if wanted.path is not None and wanted.data in DATA.groups:
            raise UserError(f"eval.path={wanted.path}: problems of eval.data={wanted.data} are made, not read")
        settings |= {"path": wanted.path} if wanted.path is not None else {}
    else:
        settings = config.data.given
        if wanted.path is not None:
            raise UserError(f"eval.path={wanted.path}: also say which set it holds, eval.data=NAME")
        if not isinstance(config.data, MadeData):
            if not settings["held_out"] or settings["part"] == "eval":
                raise UserError(
                    f"eval.every={wanted.every}: nothing to evaluate on; hold problems out (data.held_out=0.1 "
                    "data.part=train), or choose another set (eval.data=NAME)"
                )
            settings["part"] = "eval"
    with renamed_keys(EVAL_KEYS):
        data: DataConfig = DATA.made({**settings, "problems": wanted.problems})
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


RESAMPLES = 10_000  # how often problems are drawn for an interval
LEVEL = 0.95


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Estimate pass@k for one problem with `samples` responses, of which `correct` are right. k: 1 to `samples`."""
    return 1 - comb(samples - correct, k) / comb(samples, k)


def mean_pass_at_k(samples: int, correct: Sequence[int], k: int) -> float:
    """Return the mean of the estimates of pass@k over problems. correct: number of right responses to each problem."""
    return float(np.mean([pass_at_k(samples, right, k) for right in correct]))


def interval(samples: int, correct: Sequence[int], k: int) -> tuple[float, float]:
    """Return the bounds of a 95 % interval of the mean pass@k: percentiles of the means over problems that are drawn
    with replacement (bootstrap).

    The draws have a fixed seed, so that the same counts give the same interval. If all problems have the same pass@k,
    all draws are equal, and other rules give the bounds. If all n problems are solved, or none is, one bound is that
    value; the other follows from the chance of n equal results in a row (0.025 ** (1 / n)). In all other cases the
    responses are taken to be right with one common chance, and the bounds are Wilson's.
    """
    values = np.array([pass_at_k(samples, right, k) for right in correct])
    outside = (1 - LEVEL) / 2
    if values.min() == values.max():
        value = float(values.mean())
        if value in (0.0, 1.0):
            chance = outside ** (1 / len(values))
            return (0.0, 1 - chance) if value == 0 else (chance, 1.0)
        low, high = (1 - (1 - chance) ** k for chance in wilson(sum(correct), samples * len(correct)))
        return min(low, value), max(high, value)  # many equal problems may lie outside Wilson's bounds
    chosen = np.random.default_rng(0).multinomial(len(values), np.full(len(values), 1 / len(values)), RESAMPLES)
    low, high = np.quantile(chosen @ values / len(values), [outside, 1 - outside])
    return float(low), float(high)


def wilson(right: int, responses: int) -> tuple[float, float]:
    """Bounds of Wilson's 95 % interval of the chance that a response is right. right: number of right responses."""
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    share = right / responses
    middle = share + z**2 / (2 * responses)
    half = z * sqrt(share * (1 - share) / responses + z**2 / (4 * responses**2))
    return (middle - half) / (1 + z**2 / responses), (middle + half) / (1 + z**2 / responses)


if TYPE_CHECKING:
    from experiments.training.generation import HarnessGeneration

SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty")  # arguments of GRPOConfig that change what is sampled


class Evaluation:
    """Makes requests for responses to problems, and judges them. The judge's workers start at the first use."""

    def __init__(
        self, config: RunConfig, policy: str, rows: Sequence[dict[str, Any]], judge: ConversationReward, samples: int
    ):
        """policy: directory or hub id; its tokenizer is used. rows: problems, made by `held_out`. judge: judges the
        responses. samples: number of responses to each problem."""
        from transformers import AutoTokenizer

        self.samples = samples
        self.problems: list[tuple[str, Prompt]] = tokenized_rows(config, policy, rows)
        self._rows = list(rows)
        self.judge = judge
        self._config = config
        self._tokenizer = AutoTokenizer.from_pretrained(policy, trust_remote_code=False)

    def request(self, step: int, problems: slice = slice(None)) -> RolloutRequest:
        """Make the request for `samples` responses to each of these problems. step: part of the seeds."""
        from vllm import SamplingParams  # after prepare_process: vLLM reads the environment

        trainer = self._config.trainer
        chosen = {key: trainer.arguments[key] for key in SAMPLING if trainer.arguments.get(key) is not None}
        asked = [
            (problem, prompt, sample) for problem, prompt in self.problems[problems] for sample in range(self.samples)
        ]
        return RolloutRequest(
            [prompt for _, prompt, _ in asked],
            SamplingParams(
                temperature=temperature_of(self._config), max_tokens=trainer.max_completion_length, **chosen
            ),
            [problem for problem, _, _ in asked],
            [evaluation_seed(self._config.seed, step, problem, sample) for problem, _, sample in asked],
            step,
            next_history_tick=0,
            evaluation=True,
        )

    def judged(self, rollout: Rollout, problems: slice = slice(None)) -> list[float]:
        """Return the reward of each response to a request that `request` made. problems: the same slice as there."""
        texts = self._tokenizer.batch_decode(rollout.responses, skip_special_tokens=True)
        rows = [row for row in self._rows[problems] for _ in range(self.samples)]
        columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
        rewards = self.judge([[{"role": "assistant", "content": text}] for text in texts], **columns)
        verdicts = [reward for reward in rewards if reward is not None]
        if len(verdicts) < len(rewards):
            raise RewardError(f"{len(rewards) - len(verdicts)} responses got no reward, and pass@k needs all verdicts")
        return verdicts

    def measured(self, rollouts: Sequence[Rollout], rewards: Sequence[float], ks: Sequence[int]) -> dict[str, Any]:
        """Return what responses to all problems say of the policy (names: docs/reference.md). rewards: of each."""
        finished = [each for rollout in rollouts for each in rollout.finished]
        correct = (np.array(rewards) >= 1).reshape(-1, self.samples).sum(axis=1).tolist()
        return {
            "pass_at_k": {str(k): mean_pass_at_k(self.samples, correct, k) for k in ks},
            "interval": {str(k): interval(self.samples, correct, k) for k in ks},
            "correct": correct,
            "samples": self.samples,
            "length_mean": float(np.mean([len(each.tokens) for each in finished])),
            "truncated": float(np.mean([each.finish_reason == "length" for each in finished])),
            "tokens": sum(rollout.tokens for rollout in rollouts),
            "passes": sum(rollout.report.passes for rollout in rollouts),
            **self.judge.take_counts(),
        }

    def close(self) -> None:
        """End the judge's workers."""
        self.judge.close()


class TrainingEvaluation:
    """Evaluates the policy during a training: before the first step, after every few steps, and after the last one."""

    def __init__(self, config: RunConfig, policy: str, training: Any):
        """Choose the problems of the evaluation. training: rows of the training. Raises UserError if one of these
        problems is among them."""
        self._every, self._last = config.eval.every, config.trainer.max_steps
        self._ks = ks_of(config.eval.k, config.eval.samples, "eval")
        judge = make_reward(judge_config(config.reward, held_out_data(config)))
        rows = held_out(config, policy, training).to_list()
        self._evaluation = Evaluation(config, policy, rows, judge, config.eval.samples)

    def __call__(self, generation: "HarnessGeneration", step: int) -> dict[str, Any] | None:
        """Evaluate the policy after `step` steps (names: docs/reference.md). Returns None if no evaluation is due."""
        if step % self._every and step != self._last:
            return None
        began = time.perf_counter()
        rollout = generation.evaluate(self._evaluation.request(step))
        found = self._evaluation.measured([rollout], self._evaluation.judged(rollout), self._ks)
        return {
            "step": step,
            "pass_at_1": found["pass_at_k"]["1"],
            **found,
            "completions_digest": digest(*[np.asarray(response, np.int32) for response in rollout.responses]),
            "drafted": rollout.report.drafted,
            "eval_s": time.perf_counter() - began,
        }

    def close(self) -> None:
        """End the judge's workers, after the last evaluation."""
        self._evaluation.close()
