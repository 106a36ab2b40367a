"""task=bench_lengths: how well each model predicts response lengths from past epochs alone.

Models:
paper    class by P(class | generated, class at start), counted over past rollouts (LengthModel)
ema      class of an exponential moving average of the problem's past lengths, or of what is generated if that is more
hazard   class by P(length > threshold | generated) of RemainingLength

Each model is asked several times about every response: when it has 0, 1/4, 1/2, 3/4 and all of the tokens of the Long
threshold, as far as it grows. Measures:
accuracy     share of right classes
brier        mean squared error of the class probabilities, summed over classes: 0 is best, and a model that is always
             certain scores 2 (1 - accuracy)
calibration  mean |predicted - observed| probability of Long, in ten bins
remaining    mean |error| of the remaining length (hazard: of its median) divided by the mean remaining length
inside       hazard: share of the remaining lengths that lie in its middle 80 %, in whole tokens
"""

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from das.budget.length import LengthClass, LengthModel
from das.budget.remaining import RemainingLength
from experiments.harness.config import run_config
from experiments.harness.validate import check
from experiments.recorded.published_traces import COPIED_RUNS
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

MODELS = ("paper", "ema", "hazard")
POINTS = (0.0, 0.25, 0.5, 0.75, 1.0)  # as shares of the Long threshold
CHARACTERS = 4.0  # per token, for traces that hold only text; the comparison does not depend on this unit
CERTAIN = np.eye(3)  # class -> probabilities of a prediction without doubt
Lengths = dict[str, list[int]]  # problem -> lengths of its responses, in the order they were sampled


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure, print a line per model and data set, write result.json."""
    check(run_config(config))
    task = config.task
    if not 0 < task.medium < task.long < 1 or task.samples < 1 or not 0 < task.ema <= 1:
        raise UserError("task.medium, task.long, task.samples, task.ema: need 0 < medium < long < 1, samples, ema > 0")
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    sets = {"generated": made_up_lengths(config.seed)}
    traces = Path(task.traces)
    if traces.is_dir():
        sets |= {path.name.removesuffix(".jsonl.gz"): trace_lengths(path) for path in sorted(traces.glob("*.jsonl.gz"))}
    else:
        progress.note(f"no recorded rollouts at task.traces={traces}: only made-up lengths are measured")
    result: dict[str, Any] = {}
    for name, lengths in sets.items():
        if max(map(len, lengths.values())) < 2 * task.samples:
            progress.note(f"{name} is left out: it has fewer than two epochs of {task.samples} samples")
            continue
        result[name] = evaluate(lengths, task.samples, (task.medium, task.long), task.ema)
        progress.note(f"{name}: {result[name]['asked']} questions, thresholds {result[name]['thresholds']}")
        for model in MODELS:
            measures = "  ".join(f"{key} {value:.3f}" for key, value in result[name][model].items())
            progress.note(f"    {model:8s}{measures}")
    progress.note(f"result: {run_folder.write_result(result)}")


def made_up_lengths(seed: int) -> Lengths:
    """48 problems x 64 responses, log-normal around a median of the problem's own, cut at 8192.

    The medians shrink by 1 % from response to response, as training shortens responses.
    """
    rng = np.random.default_rng(seed)
    medians = 800 * np.exp(rng.normal(0, 0.8, 48))
    drift = 0.99 ** np.arange(64)
    lengths = np.ceil(medians[:, None] * drift * np.exp(rng.normal(0, 0.6, (48, 64)))).clip(1, 8192)
    return {str(i): [int(length) for length in of_problem] for i, of_problem in enumerate(lengths)}


def trace_lengths(path: Path) -> Lengths:
    """Lengths of a recorded trace: of the token ids if it has them, else its token count, else characters / 4."""
    lengths: defaultdict[str, list[int]] = defaultdict(list)
    with gzip.open(path, "rt") as file:
        for line in file:
            row = json.loads(line)
            steered = "/alpha_" in row["run"] and "alpha_0p0" not in row["run"]
            if row["run"] in COPIED_RUNS or steered:
                continue
            if "response_ids" in row:
                length = len(row["response_ids"])
            else:
                length = row.get("n_tok") or round(len(row["response"]) / CHARACTERS)
            lengths[row["problem_id"]].append(max(1, int(length)))
    return dict(lengths)


def epochs(lengths: Lengths, samples: int) -> Iterator[list[tuple[str, int]]]:
    """(problem, length) of each response, epoch after epoch of `samples` responses per problem."""
    for first in range(0, max(map(len, lengths.values())), samples):
        yield [
            (problem, length)
            for problem, of_problem in lengths.items()
            for length in of_problem[first : first + samples]
        ]


class Predictors:
    """The three models, which learn epoch by epoch."""

    def __init__(
        self, first_epoch: list[int], quantiles: tuple[float, float], ema_weight: float, max_tokens: int
    ) -> None:
        """quantiles: of the first epoch's lengths, from which a response is Medium and Long."""
        self.medium, self.long = (int(np.quantile(first_epoch, q)) for q in quantiles)
        if not 0 < self.medium < self.long:
            raise UserError(
                f"lengths give thresholds {self.medium} and {self.long}: choose other task.medium and task.long"
            )
        self.paper = LengthModel(self.medium, self.long)
        self.hazard = RemainingLength(max_tokens=max_tokens)
        self._ema: dict[str, float] = {}
        self._ema_weight = ema_weight
        self._first_mean = float(np.mean(first_epoch))

    def average(self, problem: str) -> float:
        """Moving average of the problem's mean lengths; the first epoch's mean for a problem that is new."""
        return self._ema.get(problem, self._first_mean)

    def learn(self, epoch: list[tuple[str, int]]) -> None:
        """Learn from the (problem, length) pairs of an epoch."""
        lengths_of: defaultdict[str, list[int]] = defaultdict(list)
        for problem, length in epoch:
            self.paper.observe(problem, self.paper.initial(problem), length)
            self.hazard.observe(problem, length)
            lengths_of[problem].append(length)
        for problem, lengths in lengths_of.items():
            mean = float(np.mean(lengths))
            average = self._ema.get(problem, mean)
            self._ema[problem] = average + self._ema_weight * (mean - average)
        self.paper.refit()


@dataclass
class Answers:
    """What the models predicted, question by question, and the truth."""

    classes: list[int] = field(default_factory=list)
    remaining: list[float] = field(default_factory=list)
    probabilities: dict[str, list[NDArray[np.float64]]] = field(default_factory=lambda: {m: [] for m in MODELS})
    guesses: dict[str, list[float]] = field(default_factory=lambda: {"ema": [], "hazard": []})  # of `remaining`
    inside: list[bool] = field(default_factory=list)

    def ask(self, models: Predictors, problem: str, length: int) -> None:
        """Ask about one response at every point of its growth."""
        paper, hazard = models.paper, models.hazard
        initial, average = paper.initial(problem), models.average(problem)
        thresholds = np.array([models.medium - 1.0, models.long - 1.0])
        for generated in (int(point * models.long) for point in POINTS):
            if generated >= length:
                break
            remaining = float(length - generated)
            self.classes.append(paper.classify(length))
            self.remaining.append(remaining)
            counted = np.array(paper.probabilities(generated, initial))
            self.probabilities["paper"].append(counted if counted.any() else CERTAIN[paper.current(generated, initial)])
            self.probabilities["ema"].append(CERTAIN[paper.classify(int(max(average, generated + 1)))])
            beyond = hazard.beyond(problem, generated, thresholds)
            self.probabilities["hazard"].append(np.array([1 - beyond[0], beyond[0] - beyond[1], beyond[1]]))
            estimate = hazard.estimate(problem, generated)
            self.guesses["hazard"].append(estimate.median)
            self.guesses["ema"].append(max(average - generated, 0.0))
            self.inside.append(int(estimate.low) <= remaining <= np.ceil(estimate.high))


def evaluate(lengths: Lengths, samples: int, quantiles: tuple[float, float], ema_weight: float) -> dict[str, Any]:
    """The measures of the module's docstring for each model. The models only learn from the first epoch."""
    first, *later = epochs(lengths, samples)
    longest = max(max(of_problem) for of_problem in lengths.values())
    models = Predictors([length for _, length in first], quantiles, ema_weight, longest)
    models.learn(first)
    answers = Answers()
    for epoch in later:
        for problem, length in epoch:
            answers.ask(models, problem, length)
        models.learn(epoch)
    classes = np.array(answers.classes)
    result: dict[str, Any] = {"asked": len(classes), "thresholds": [models.medium, models.long]}
    for model in MODELS:
        result[model] = class_measures(np.array(answers.probabilities[model]), classes)
        if model in answers.guesses:
            error = np.abs(np.array(answers.guesses[model]) - np.array(answers.remaining))
            result[model]["remaining"] = float(error.mean() / np.mean(answers.remaining))
    result["hazard"]["inside"] = float(np.mean(answers.inside))
    return result


def class_measures(probabilities_N_3: NDArray[np.float64], classes_N: NDArray[np.int64]) -> dict[str, float]:
    """accuracy, brier and calibration (see the module's docstring)."""
    predicted = probabilities_N_3[:, LengthClass.LONG]
    observed = classes_N == LengthClass.LONG
    bins = np.minimum((predicted * 10).astype(int), 9)
    gap = sum(abs(float((predicted - observed)[bins == one].sum())) for one in range(10)) / len(predicted)
    # Of equally likely classes take the longer one, as the models do.
    choice = 2 - np.argmax(probabilities_N_3[:, ::-1], axis=1)
    return {
        "accuracy": float(np.mean(choice == classes_N)),
        "brier": float(np.square(probabilities_N_3 - np.eye(3)[classes_N]).sum(axis=1).mean()),
        "calibration": gap,
    }
