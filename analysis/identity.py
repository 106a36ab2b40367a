"""What drafts must not change: not one bit of an arm that keeps bits, and of the others the distribution.

The verdict while arms run, result.json and analysis.compare read it here. Unmodified vLLM samples other tokens, and
so may engines with engine.exact=distribution.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.metrics import SHOWN, evaluations, exact_evaluations

EXACT: dict[str, str] = SHOWN["exact"]  # name in result.json -> field of a row of metrics.jsonl
OF_ROLLOUTS = ("completions", "rewards")  # of these, what an arm has that does not train (task.train_once)
FINAL = ("final_weights", "optimizer")  # digests that a run writes at its end
Rows = Sequence[Mapping[str, Any]]


def equal(a: Any, b: Any) -> bool:
    """Return whether two values are equal. NaN equals NaN."""
    return bool(a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)))


def differing(checks: Mapping[str, Any]) -> list[str]:
    """Return which results differ. checks: an arm's entry `identical` of result.json."""
    return [what for what, same in checks.items() if what != "first_difference" and not same]


def first_differences(rows: Rows, others: Rows, once: bool = False) -> dict[str, int | None]:
    """Return name of a result -> the first step at which it differs between two runs, or None.

    The result `eval` is there only if policies were evaluated. once: one of them did not train (task.train_once).
    """
    found: dict[str, int | None] = {}
    for name in OF_ROLLOUTS if once else EXACT:
        field = EXACT[name]
        pairs = zip(rows, others, strict=True)
        found[name] = next((row["step"] for row, other in pairs if not equal(row[field], other[field])), None)
    if evaluations(rows) or evaluations(others):
        ours, theirs = ({each[0]: each for row in run for each in exact_evaluations(row)} for run in (rows, others))
        steps = sorted({*ours, *theirs})
        found["eval"] = next((step for step in steps if ours.get(step) != theirs.get(step)), None)
    return found


METHOD = "stock"  # arm.method of arms of unmodified vLLM
UNLIKELY = 1e-3  # a result with a p-value below this is not due to chance
FLIPS = 9999  # random sign patterns of a sign-flip test; its p-value is at least 1 / (FLIPS + 1)


def keeps_bits(settings: Mapping[str, Any]) -> bool:
    """Return whether the arm of these settings should have the baseline's tokens. Unmodified vLLM samples others, and
    so may engines with engine.exact=distribution."""
    return bool(settings["arm"]["method"] != METHOD and settings["engine"]["exact"] != "distribution")


def compare_distributions(
    baseline: Path, arm: Path, baseline_rows: Sequence[Mapping[str, Any]], arm_rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare an arm that does not keep bits with the baseline. Returns the arm's entry in result.json.

    baseline, arm: the arms' folders. Both arms have the same problems in each step, so steps are compared in pairs. In
    step 1 they also have the same weights, so only chance in sampling separates them. Later weights differ, unless only
    the baseline was trained (task.train_once). So
    differences over all steps also contain chance in training, whose effects last for many steps. The p-values of these
    differences treat steps as independent. Therefore they are too small for a long training.
    """
    first, first_of_arm = (
        [len(response["response_ids"]) for response in read.rollout(folder, 1)] for folder in (baseline, arm)
    )
    statistic, p_value = kolmogorov_smirnov(first, first_of_arm)
    pairs = [(row["reward"], own["reward"]) for row, own in zip(baseline_rows, arm_rows, strict=True)]
    # A step whose responses got no reward compares nothing.
    pairs = [pair for pair in pairs if None not in pair] or [(math.nan, math.nan)]
    rewards, rewards_of_arm = zip(*pairs, strict=True)
    lengths, lengths_of_arm = ([row["length_mean"] for row in rows] for rows in (baseline_rows, arm_rows))
    return {
        "first_step_length": _means(first_of_arm, first),
        "kolmogorov_smirnov": {
            "statistic": statistic,
            "p_value": p_value,
            "n": [len(first_of_arm), len(first)],
            "visible_from": visible_from(len(first_of_arm), len(first)),
        },
        "length": _means(lengths_of_arm, lengths) | _paired(lengths_of_arm, lengths),
        "reward": _means(rewards_of_arm, rewards) | _paired(rewards_of_arm, rewards),
    }


def _means(values: Sequence[float], baseline_values: Sequence[float]) -> dict[str, float]:
    """Return the mean of each arm's values, with its standard error."""
    return {
        "mean": float(np.mean(values)),
        "standard_error": standard_error(values),
        "baseline_mean": float(np.mean(baseline_values)),
        "baseline_standard_error": standard_error(baseline_values),
    }


def _paired(values: Sequence[float], baseline_values: Sequence[float]) -> dict[str, float]:
    """Return the mean of the differences within pairs, its standard error, and the p-value of "there is no
    difference"."""
    differences = np.subtract(values, baseline_values)
    return {
        "difference": float(differences.mean()),
        "difference_standard_error": standard_error(differences.tolist()),
        "p_value": sign_flip(differences),
    }


def sign_flip(differences: np.ndarray) -> float:
    """Return the p-value of a sign-flip test. The values of random pairs are swapped, in many tries; the p-value is the
    share of tries after which the mean difference is as large as before.

    differences: float [pairs]. For n pairs the p-value is 2 ** (1 - n) or more, up to chance.
    """
    signs = np.random.default_rng(0).choice(np.array([-1.0, 1.0], np.float32), (FLIPS, len(differences)))
    found = abs(differences.sum())
    as_large = np.abs(signs @ differences) >= found - 1e-9 * np.abs(differences).sum()  # tolerance for rounding
    return float(1 + as_large.sum()) / (FLIPS + 1)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for a single value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def kolmogorov_smirnov(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Run the two-sample Kolmogorov-Smirnov test. Returns its statistic and its asymptotic p-value.

    If many values are equal, as among lengths, the p-value is too large, never too small.
    """
    values = np.unique(np.concatenate((a, b)))
    below_a, below_b = (np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (a, b))
    statistic = float(np.abs(below_a - below_b).max())
    scaled = statistic * math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    if scaled < 0.2:  # the series converges slowly here, and its limit is 1
        return statistic, 1.0
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * k * k * scaled * scaled) for k in range(1, 101))
    return statistic, min(1.0, max(0.0, sum(terms)))


def visible_from(n: int, m: int) -> float:
    """Return the Kolmogorov-Smirnov statistic whose p-value is UNLIKELY for samples of n and m values. The statistic is
    at most 1. So if the result is above 1, the samples are too small to show any difference."""
    return math.sqrt(-math.log(UNLIKELY / 2) / 2 * (n + m) / (n * m))


def distribution_verdict(name: str, baseline: str, found: Mapping[str, Any]) -> str:
    """Return one line about an arm that does not keep bits. found: the result of compare_distributions."""
    first, length, reward = found["kolmogorov_smirnov"], found["length"], found["reward"]
    different = [
        what
        for what, test in (("lengths of step 1", first), ("lengths", length), ("reward", reward))
        if test["p_value"] < UNLIKELY
    ]
    answer = f"DIFFERENT {', '.join(different)}" if different else "no difference found"
    own_n, baseline_n = first["n"]
    visible = f"sees {first['visible_from']:.2f} or more" if first["visible_from"] <= 1 else "too few to see any"
    return (
        f"{name}: compared in distribution: {answer} (step 1, lengths {_pair(found['first_step_length'], '.1f')}, "
        f"Kolmogorov-Smirnov {first['statistic']:.2f}, n = {own_n} and {baseline_n}: {visible}, "
        f"p = {first['p_value']:.2g}; all steps, lengths {_pair(length, '.1f')}, {_difference(length, '.1f')}; "
        f"reward {_pair(reward, '.3f')}, {_difference(reward, '.3f')}; {baseline} in brackets)"
    )


def _difference(paired: Mapping[str, float], form: str) -> str:
    error = f"{paired['difference_standard_error']:{form}}"
    return f"difference by step {paired['difference']:+{form}} ± {error}, p = {paired['p_value']:.2g}"


def _pair(means: Mapping[str, float], form: str) -> str:
    own, base = (
        f"{means[f'{prefix}mean']:{form}} ± {means[f'{prefix}standard_error']:{form}}" for prefix in ("", "baseline_")
    )
    return f"{own} ({base})"
