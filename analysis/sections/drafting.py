"""Helpers for sections about drafters that are models: counts of drafted and accepted tokens, changes of time, ratios.

A cycle is the papers' word for a target pass that verifies a draft of a request.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from analysis.sections.shared import Rows, rows, total

ONLINE, FROZEN = "online_true", "online_false"


def head_arm(warm: str, online: str) -> str:
    """Return the name of an arm in the run of draft heads. warm: data on which the head was first trained, in_domain or
    general. online: ONLINE or FROZEN."""
    return f"warm_{warm}-{online}"


def cycles(steps: Rows) -> float:
    """Return the number of cycles: each target pass counts once for each request that had a drafted token in it."""
    return total(steps, "draft_rounds")


def block_efficiency(steps: Rows) -> float:
    """Return tau, the emitted tokens per cycle: 1 + accepted / cycles; nan without drafts."""
    return 1 + total(steps, "accepted") / cycles(steps) if cycles(steps) else float("nan")


def drafted_per_cycle(steps: Rows) -> float:
    """Return gamma, the mean number of drafted tokens per cycle; nan without drafts."""
    return total(steps, "drafted") / cycles(steps) if cycles(steps) else float("nan")


def accepted_share(steps: Rows) -> float:
    """Return alpha: accepted / drafted tokens; nan without drafts."""
    drafted = total(steps, "drafted")
    return total(steps, "accepted") / drafted if drafted else float("nan")


def tokens_per_pass(steps: Rows) -> float:
    """Return the emitted tokens per target pass of a request. Passes without a draft count too."""
    return total(steps, "tokens") / total(steps, "passes")


def speedup(run: Path, arm: str, key: str = "rollout_s") -> float:
    """Return time of the arm `none` / time of this arm, as the median over steps. key: name of the metric, in seconds.

    A ratio of sums would depend too much on a few steps that were slowed by other work on the machine.
    """
    pairs = zip(rows(run, "none"), rows(run, arm), strict=True)
    return median(plain[key] / drafting[key] for plain, drafting in pairs)


def change(ratio: float) -> str:
    """Return a ratio of times as a signed percentage: 0.9 gives "-10.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def numbers(values: Sequence[float], digits: int = 2) -> str:
    """Return numbers as text, with slashes between them and a dash for a nan."""
    return " / ".join("-" if value != value else f"{value:.{digits}f}" for value in values)


def named(values: Mapping[str, float], digits: int = 2) -> str:
    """Return names with their numbers as text. Orderings show it as their evidence."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
