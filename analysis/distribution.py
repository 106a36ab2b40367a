"""Arms that sample other tokens than the baseline, such as vLLM as it comes: compared in distribution, not in bits."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import read

METHOD = "stock"  # arm.method of such arms
UNLIKELY = 1e-3  # a p-value below this is no chance result


def is_stock(folder: Path) -> bool:
    """Whether the arm in `folder` is vLLM as it comes."""
    return (folder / "config.yaml").exists() and read.config(folder).get("arm", {}).get("method") == METHOD


def compare_distributions(
    baseline: Path, arm: Path, baseline_rows: Sequence[Mapping[str, Any]], arm_rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What result.json says of such an arm. Step 1 is compared exactly: both arms have the same weights and problems.

    baseline, arm: the arms' folders. Later weights differ, so means over all steps also contain chance in training.
    """
    first, first_of_arm = (
        [len(response["response_ids"]) for response in read.rollout(folder, 1)] for folder in (baseline, arm)
    )
    statistic, p_value = kolmogorov_smirnov(first, first_of_arm)
    rewards, rewards_of_arm = ([row["reward"] for row in rows] for rows in (baseline_rows, arm_rows))
    lengths, lengths_of_arm = ([row["length_mean"] for row in rows] for rows in (baseline_rows, arm_rows))
    return {
        "first_step_length": _means(first_of_arm, first),
        "kolmogorov_smirnov": {"statistic": statistic, "p_value": p_value, "n": [len(first_of_arm), len(first)]},
        "length": _means(lengths_of_arm, lengths),
        "reward": _means(rewards_of_arm, rewards),
    }


def _means(values: Sequence[float], baseline_values: Sequence[float]) -> dict[str, float]:
    """Means with their standard errors."""
    return {
        "mean": float(np.mean(values)),
        "standard_error": standard_error(values),
        "baseline_mean": float(np.mean(baseline_values)),
        "baseline_standard_error": standard_error(baseline_values),
    }


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 for a single value."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def kolmogorov_smirnov(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """The two-sample Kolmogorov-Smirnov test: its statistic and asymptotic p-value.

    Values that occur often, as lengths do, make the p-value larger than it is, never smaller.
    """
    values = np.unique(np.concatenate((a, b)))
    below_a, below_b = (np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (a, b))
    statistic = float(np.abs(below_a - below_b).max())
    scaled = statistic * math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    if scaled < 0.2:  # the series converges slowly there, to 1
        return statistic, 1.0
    terms = (2 * (-1) ** (k - 1) * math.exp(-2 * k * k * scaled * scaled) for k in range(1, 101))
    return statistic, min(1.0, max(0.0, sum(terms)))


def distribution_verdict(name: str, baseline: str, found: Mapping[str, Any]) -> str:
    """One line for such an arm. found: what compare_distributions returned."""
    p_value = found["kolmogorov_smirnov"]["p_value"]
    alike = "no difference found" if p_value >= UNLIKELY else "DIFFERENT lengths"
    return (
        f"{name}: compared in distribution: {alike} (step 1, lengths {_pair(found['first_step_length'], '.1f')}, "
        f"Kolmogorov-Smirnov p = {p_value:.2g}; all steps, reward {_pair(found['reward'], '.3f')}, lengths "
        f"{_pair(found['length'], '.1f')}; {baseline} in brackets)"
    )


def _pair(means: Mapping[str, float], form: str) -> str:
    own, base = (
        f"{means[f'{prefix}mean']:{form}} ± {means[f'{prefix}standard_error']:{form}}" for prefix in ("", "baseline_")
    )
    return f"{own} ({base})"
