"""One rollout of an engine: a seed and a problem id for every request, costs measured, the drafter's window moved."""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from das.budget.schedule import LongestFirst
from das.engine.noise import splitmix64
from das.engine.proposer import PROBLEM_KEY


@dataclass
class Rollout:
    """One finished rollout: `responses[i]` answers prompt i. Times in seconds."""

    step: int
    problems: list[str]
    responses: list[list[int]]  # token ids
    finish_reasons: list[str]
    requests: list[dict[str, Any]]  # passes, drafted, first_s, last_s of each request
    rollout_s: float
    report: dict[str, Any]  # the meter's report

    @property
    def tokens(self) -> int:
        """Response tokens of all requests."""
        return sum(len(response) for response in self.responses)


def request_seed(run_seed: int, step: int, index: int, evaluation: bool = False) -> int:
    """Seed of the `index`-th request of a step: distinct for every request of a run, equal in every arm."""
    mixed = np.uint64(run_seed)
    for part in (step, index, int(evaluation)):
        mixed = splitmix64(np.array([mixed ^ np.uint64(part)], np.uint64))[0]
    return int(mixed >> np.uint64(2))


def roll_out(
    llm: Any,
    generate: Callable[..., list[Any]],
    prompts: Sequence[Any],
    sampling_params: Any,
    problems: Sequence[str],
    seeds: Sequence[int],
    step: int,
    next_clock: int,
    schedule: LongestFirst | None = None,
    evaluation: bool = False,
) -> tuple[list[Any], Rollout]:
    """Generate one response for each prompt.

    generate: llm.generate, or what stands behind it. sampling_params: shared; each request gets a copy with its own
    seed and problem id. next_clock: the drafter's clock once this rollout is over. schedule: in which order requests
    are handed in; it learns from what came.
    evaluation: the alarm does not compare it with the rollouts of the training.
    Returns vLLM's outputs and the measured rollout. Raises ValueError for n > 1: hand in n requests instead.
    """
    if sampling_params.n != 1:
        raise ValueError(
            f"SamplingParams.n={sampling_params.n}: hand each prompt in that many times, with seeds of its own"
        )
    if not len(problems) == len(prompts) == len(seeds):
        raise ValueError(f"{len(prompts)} prompts but {len(problems)} problem ids and {len(seeds)} seeds")
    parameters = []
    for problem, seed in zip(problems, seeds, strict=True):
        own = sampling_params.clone()
        own.seed = seed
        own.extra_args = {**(own.extra_args or {}), PROBLEM_KEY: problem}
        own.detokenize = bool(own.stop)  # token ids are what is read; text is only needed to find stop strings
        parameters.append(own)
    order = list(range(len(prompts))) if schedule is None else schedule.order(problems)
    llm.collective_rpc("das_begin_rollout", args=(len(prompts),))
    start = time.perf_counter()
    started = generate([prompts[i] for i in order], [parameters[i] for i in order], use_tqdm=False)
    rollout_s = time.perf_counter() - start
    report = llm.collective_rpc("das_end_rollout", args=(next_clock, not evaluation))[0]
    outputs = [output for _, output in sorted(zip(order, started, strict=True), key=lambda pair: pair[0])]
    # vLLM appends a random tail to request ids inside the engine.
    costs = {name.rsplit("-", 1)[0]: cost for name, cost in report.pop("requests").items()}
    for name, predicted in report.pop("predicted_length", {}).items():
        costs[name.rsplit("-", 1)[0]]["predicted_length"] = predicted
    for alarm in report.get("alarms", []):
        warnings.warn(f"speculation, step {step}: {alarm}", RuntimeWarning, stacklevel=2)
    if schedule is not None:
        schedule.observe(problems, [len(output.outputs[0].token_ids) for output in outputs])
    return outputs, Rollout(
        step=step,
        problems=list(problems),
        responses=[list(output.outputs[0].token_ids) for output in outputs],
        finish_reasons=[str(output.outputs[0].finish_reason) for output in outputs],
        requests=[costs[output.request_id] for output in outputs],
        rollout_s=rollout_s,
        report=report,
    )


def rollout_row(rollout: Rollout) -> dict[str, Any]:
    """The numbers of one rollout that go into metrics.jsonl (names: docs/metrics.md)."""
    lengths = [len(response) for response in rollout.responses]
    passes = rollout.report["passes"]
    row = {
        "rollout_s": rollout.rollout_s,
        "tokens": rollout.tokens,
        "passes": passes,
        "tokens_per_pass": rollout.tokens / passes,
        "drafted": rollout.report["drafted"],
        "accepted": rollout.tokens - passes,
        "draft_s": rollout.report["draft_s"],
        "draft_share": rollout.report["draft_s"] / rollout.rollout_s,
        "decode_steps": rollout.report["decode_steps"],
        "length_mean": float(np.mean(lengths)),
        "length_max": int(np.max(lengths)),
        "history_tokens": rollout.report.get("history_tokens", 0),
        "wasted": rollout.report["drafted"] - (rollout.tokens - passes),
    }
    return row | by_class(rollout) | prediction_errors(rollout) | {"alarms": rollout.report.get("alarms", [])}


CLASSES = {"short": (0.0, 0.5), "medium": (0.5, 0.8), "long": (0.8, 1.0)}  # quantiles of the rollout's lengths


def by_class(rollout: Rollout) -> dict[str, int]:
    """Drafted, accepted, wasted tokens of the shorter half of the responses, the longest fifth, and those between."""
    lengths = np.array([len(response) for response in rollout.responses])
    drafted = np.array([request["drafted"] for request in rollout.requests])
    accepted = lengths - np.array([request["passes"] for request in rollout.requests])
    rank = np.argsort(np.argsort(lengths, kind="stable"), kind="stable") / len(lengths)
    row: dict[str, int] = {}
    for name, (low, high) in CLASSES.items():
        own = (rank >= low) & (rank < high)
        row[f"drafted_{name}"], row[f"accepted_{name}"] = int(drafted[own].sum()), int(accepted[own].sum())
        row[f"wasted_{name}"] = row[f"drafted_{name}"] - row[f"accepted_{name}"]
    return row


def prediction_errors(rollout: Rollout) -> dict[str, float]:
    """What the arm foresaw, as far as it does: calibration_error, length_error, pass_time_error (docs/metrics.md)."""
    row: dict[str, float] = {}
    if "calibration_error" in rollout.report:
        row["calibration_error"] = rollout.report["calibration_error"]
    known = [
        (request["predicted_length"], len(response))
        for request, response in zip(rollout.requests, rollout.responses, strict=True)
        if "predicted_length" in request
    ]
    if known:
        predicted, actual = np.array(known).T
        row["length_error"] = float(np.abs(predicted - actual).sum() / actual.sum())
    expected = np.array(rollout.report.get("pass_predicted_s", []), float)
    measured = np.array(rollout.report.get("pass_measured_s", []), float)
    usable = np.isfinite(expected)
    if usable.any():
        row["pass_time_error"] = float(np.abs(expected[usable] / measured[usable] - 1).mean())
    return row
