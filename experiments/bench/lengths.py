"""task=bench_lengths: how well each model predicts response lengths, from past epochs alone.

paper    class by P(class | generated, class at start), counted over past rollouts (LengthModel)
ema      class of an exponential moving average of the problem's past lengths, or of what is generated if that is more
hazard   class by P(length > threshold | generated) of RemainingLength

Asked of every response at points of its growth it lives to see: after 0, 1/4, 1/2 and 3/4 of the Long threshold and at
the threshold. accuracy: right class. brier: mean squared error of the class probabilities, summed over classes (0 best;
an argmax alone scores 2 (1 - accuracy)). calibration: mean |said - observed| of the probability of Long, in ten bins.
remaining: mean |error| of the remaining length (hazard: of its median) / mean remaining length. inside: share of the
remaining lengths within the middle 80 % that hazard states, in whole tokens.
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from das.budget.length import LengthClass, LengthModel
from das.budget.remaining import RemainingLength
from experiments.harness.config import run_config
from experiments.harness.validate import check
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

MODELS = ("paper", "ema", "hazard")
POINTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # of the Long threshold
CHARACTERS = 4.0  # a token, for traces that hold text alone; the unit does not change what is compared
COPIES = ("cleaned_0019_temp0", "data")  # runs of arctic_prob0019 that repeat others
Lengths = dict[str, list[int]]  # of each problem's responses, in the order they were sampled


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure, print a line a model and data set, write result.json."""
    check(run_config(config))
    task = config.task
    if not 0 < task.medium < task.long < 1 or task.samples < 1 or not 0 < task.ema <= 1:
        raise UserError("task.medium, task.long, task.samples, task.ema: need 0 < medium < long < 1, samples, ema > 0")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    sets = {"generated": generated(config.seed)}
    traces = Path(task.traces)
    if traces.is_dir():
        sets |= {path.name.removesuffix(".jsonl.gz"): recorded(path) for path in sorted(traces.glob("*.jsonl.gz"))}
    else:
        progress.note(f"no recorded rollouts at task.traces={traces}: generated lengths alone")
    result: dict[str, Any] = {}
    for name, lengths in sets.items():
        if max(map(len, lengths.values())) < 2 * task.samples:
            progress.note(f"{name}: fewer than two epochs of {task.samples} samples, left out")
            continue
        result[name] = evaluate(lengths, task.samples, (task.medium, task.long), task.ema)
        progress.note(f"{name}: {result[name]['asked']} questions, thresholds {result[name]['thresholds']}")
        for model in MODELS:
            shown = "  ".join(f"{key} {value:.3f}" for key, value in result[name][model].items())
            progress.note(f"    {model:8s}{shown}")
    progress.note(f"result: {run_folder.write_result(result)}")


def generated(seed: int) -> Lengths:
    """48 problems x 64 responses: log-normal around a median of the problem's own that shrinks 1 % a response, as
    training makes it; cut at 8192."""
    rng = np.random.default_rng(seed)
    medians = 800 * np.exp(rng.normal(0, 0.8, 48))
    drift = 0.99 ** np.arange(64)
    lengths = np.ceil(medians[:, None] * drift * np.exp(rng.normal(0, 0.6, (48, 64)))).clip(1, 8192)
    return {str(i): [int(length) for length in own] for i, own in enumerate(lengths)}


def recorded(path: Path) -> Lengths:
    """Lengths of a trace: token ids where it has them, else its token count, else characters / 4."""
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            if row["run"] in COPIES or ("/alpha_" in row["run"] and "alpha_0p0" not in row["run"]):
                continue  # copies, and policies that were steered
            if "response_ids" in row:
                length = len(row["response_ids"])
            else:
                length = row.get("n_tok") or round(len(row["response"]) / CHARACTERS)
            lengths[row["problem_id"]].append(max(1, int(length)))
    return dict(lengths)


def epochs(lengths: Lengths, samples: int) -> Iterator[list[tuple[str, int]]]:
    """(problem, length) of each response, epoch after epoch."""
    for first in range(0, max(map(len, lengths.values())), samples):
        yield [(problem, length) for problem, own in lengths.items() for length in own[first : first + samples]]


def evaluate(lengths: Lengths, samples: int, quantiles: tuple[float, float], ema_weight: float) -> dict[str, Any]:
    """The measures of the module's head for each model; the first epoch is learned from, not asked about."""
    rounds = list(epochs(lengths, samples))
    start = [length for _, length in rounds[0]]
    medium, long = (int(np.quantile(start, q)) for q in quantiles)
    if not 0 < medium < long:
        raise UserError(f"lengths give thresholds {medium} and {long}: choose other task.medium and task.long")
    paper = LengthModel(medium, long)
    hazard = RemainingLength(max_tokens=max(max(own) for own in lengths.values()))
    ema: dict[str, float] = {}
    truth: list[int] = []
    left: list[float] = []
    chances: dict[str, list[NDArray[np.float64]]] = {model: [] for model in MODELS}
    guesses: dict[str, list[float]] = {"ema": [], "hazard": []}
    inside: list[bool] = []
    certain = np.eye(3)
    for number, epoch in enumerate(rounds):
        for problem, length in epoch if number else []:
            initial = paper.initial(problem)
            for generated_tokens in (int(point * long) for point in POINTS):
                if generated_tokens >= length:
                    break
                truth.append(paper.classify(length))
                left.append(length - generated_tokens)
                counted = np.array(paper.probabilities(generated_tokens, initial))
                chosen = certain[paper.current(generated_tokens, initial)]
                chances["paper"].append(counted if counted.any() else chosen)
                average = ema.get(problem, float(np.mean(start)))
                chances["ema"].append(certain[paper.classify(int(max(average, generated_tokens + 1)))])
                over = hazard.beyond(problem, generated_tokens, np.array([medium - 1.0, long - 1.0]))
                chances["hazard"].append(np.array([1 - over[0], over[0] - over[1], over[1]]))
                expected = hazard.estimate(problem, generated_tokens)
                guesses["hazard"].append(expected.median)
                guesses["ema"].append(max(average - generated_tokens, 0.0))
                inside.append(int(expected.low) <= left[-1] <= np.ceil(expected.high))
        seen: defaultdict[str, list[int]] = defaultdict(list)
        for problem, length in epoch:
            paper.observe(problem, paper.initial(problem), length)
            hazard.observe(problem, length)
            seen[problem].append(length)
        for problem, own in seen.items():
            average = ema.get(problem, float(np.mean(own)))
            ema[problem] = average + ema_weight * (float(np.mean(own)) - average)
        paper.refit()
    right = np.array(truth)
    result: dict[str, Any] = {"asked": len(truth), "thresholds": [medium, long]}
    for model in MODELS:
        result[model] = class_measures(np.array(chances[model]), right)
        if model in guesses:
            missed = np.abs(np.array(guesses[model]) - np.array(left))
            result[model]["remaining"] = float(missed.mean() / np.mean(left))
    result["hazard"]["inside"] = float(np.mean(inside))
    return result


def class_measures(chances_N_3: NDArray[np.float64], truth_N: NDArray[np.int64]) -> dict[str, float]:
    """accuracy, brier and calibration of the module's head."""
    said = chances_N_3[:, LengthClass.LONG]
    happened = truth_N == LengthClass.LONG
    bins = np.minimum((said * 10).astype(int), 9)
    gap = sum(abs(float((said - happened)[bins == one].sum())) for one in range(10)) / len(said)
    # Of equally likely classes the longer one, as the models choose.
    choice = 2 - np.argmax(chances_N_3[:, ::-1], axis=1)
    return {
        "accuracy": float(np.mean(choice == truth_N)),
        "brier": float(np.square(chances_N_3 - np.eye(3)[truth_N]).sum(axis=1).mean()),
        "calibration": gap,
    }
