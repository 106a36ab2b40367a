"""Helpers for sections about model drafters: how much is drafted and accepted, changes of time, ratios.

The papers call a target pass that verifies drafts of a request a cycle.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from analysis.sections.shared import Rows, rows, total

ONLINE, FROZEN = "online_true", "online_false"


def head_arm(warm: str, online: str) -> str:
    """Name of an arm of the run of draft heads. warm: in_domain or general."""
    return f"warm_{warm}-{online}"


def cycles(steps: Rows) -> float:
    """Target passes, counted per request, that verified at least one drafted token."""
    return total(steps, "draft_rounds")


def block_efficiency(steps: Rows) -> float:
    """tau: emitted tokens per cycle, 1 + accepted / cycles; nan without drafts."""
    return 1 + total(steps, "accepted") / cycles(steps) if cycles(steps) else float("nan")


def drafted_per_cycle(steps: Rows) -> float:
    """gamma, as a mean: drafted tokens per cycle; nan without drafts."""
    return total(steps, "drafted") / cycles(steps) if cycles(steps) else float("nan")


def accepted_share(steps: Rows) -> float:
    """alpha: accepted / drafted tokens; nan without drafts."""
    drafted = total(steps, "drafted")
    return total(steps, "accepted") / drafted if drafted else float("nan")


def tokens_per_pass(steps: Rows) -> float:
    """Emitted tokens per target pass of a request; passes without a draft count too."""
    return total(steps, "tokens") / total(steps, "passes")


def speedup(run: Path, arm: str, key: str = "rollout_s") -> float:
    """Time of `none` / time of the arm, as the median over steps. key: the metric, in seconds.

    A ratio of sums would depend too much on a few steps slowed by other work on the machine.
    """
    pairs = zip(rows(run, "none"), rows(run, arm), strict=True)
    return median(plain[key] / drafting[key] for plain, drafting in pairs)


def change(ratio: float) -> str:
    """A ratio of times as a signed percentage: 0.9 is "-10.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def numbers(values: Sequence[float], digits: int = 2) -> str:
    """Numbers with slashes between them; a nan is a dash."""
    return " / ".join("-" if value != value else f"{value:.{digits}f}" for value in values)


def named(values: Mapping[str, float], digits: int = 2) -> str:
    """Names with their numbers, for the evidence of an ordering."""
    return ", ".join(f"{name} {value:.{digits}f}" for name, value in values.items())
