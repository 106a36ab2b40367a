"""Measure a policy on problems: sample responses, judge them, estimate pass@k.

`Evaluation` makes requests and judges responses; task=evaluate uses it directly. `TrainingEvaluation` uses it every few
steps of a training.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from das.engine.rollouts.rollout import Rollout, RolloutRequest, evaluation_seed
from experiments.arm.held_out import held_out, held_out_data, judge_config, ks_of, temperature_of
from experiments.arm.pass_at_k import interval, mean_pass_at_k
from experiments.arm.reward import make_reward
from experiments.arm.rollout_steps import Prompt, tokenized_rows
from experiments.digests import digest
from experiments.settings.config import RunConfig
from rewards.conversations import ConversationReward
from rewards.reward import RewardError

if TYPE_CHECKING:
    from experiments.training.generation import HarnessGeneration

SAMPLING = ("top_p", "top_k", "min_p", "repetition_penalty")  # arguments of GRPOConfig that change what is sampled


@dataclass(frozen=True)
class Judged:
    """The judgement on responses to some problems. All lists except `correct` have an entry for each response."""

    correct: list[int]  # number of right responses to each problem
    rewards: list[float]
    lengths: list[int]
    truncated: int  # number of responses that were cut off at the longest length
    counts: dict[str, int]  # how often the judge's workers died, failed or were too slow (rewards/workers.py)


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
        self._judge = judge
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

    def judged(self, rollout: Rollout, problems: slice = slice(None)) -> Judged:
        """Judge the responses to a request that `request` made. problems: the same slice as there."""
        texts = self._tokenizer.batch_decode(rollout.responses, skip_special_tokens=True)
        rows = [row for row in self._rows[problems] for _ in range(self.samples)]
        columns = {key: [row[key] for row in rows] for key in rows[0] if key != "prompt"}
        rewards = self._judge([[{"role": "assistant", "content": text}] for text in texts], **columns)
        verdicts = [reward for reward in rewards if reward is not None]
        if len(verdicts) < len(rewards):
            raise RewardError(f"{len(rewards) - len(verdicts)} responses got no reward, and pass@k needs all verdicts")
        right = np.array([reward >= 1 for reward in verdicts]).reshape(-1, self.samples)
        return Judged(
            correct=right.sum(axis=1).tolist(),
            rewards=verdicts,
            lengths=[len(response) for response in rollout.responses],
            truncated=sum(each.finish_reason == "length" for each in rollout.finished),
            counts=self._judge.take_counts(),
        )

    def close(self) -> None:
        """End the judge's workers."""
        self._judge.close()


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
        judged = self._evaluation.judged(rollout)
        pass_at_k = {str(k): mean_pass_at_k(self._evaluation.samples, judged.correct, k) for k in self._ks}
        return {
            "step": step,
            "pass_at_1": pass_at_k["1"],
            "pass_at_k": pass_at_k,
            "interval": {str(k): interval(self._evaluation.samples, judged.correct, k) for k in self._ks},
            "correct": judged.correct,
            "samples": self._evaluation.samples,
            "length_mean": float(np.mean(judged.lengths)),
            "truncated": judged.truncated / len(judged.lengths),
            "completions_digest": digest(*[np.asarray(response, np.int32) for response in rollout.responses]),
            "tokens": rollout.tokens,
            "passes": rollout.report.passes,
            "drafted": rollout.report.drafted,
            "eval_s": time.perf_counter() - began,
            **judged.counts,
        }

    def close(self) -> None:
        """End the judge's workers, after the last evaluation."""
        self._evaluation.close()
