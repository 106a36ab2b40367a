"""The verdict of a comparison: one line after each step while it runs, and a box at its end."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from analysis.arms import identity_verdict
from analysis.identity import first_differences

WIDTH = 100  # columns of the box and of the table at the end, so that they fit a terminal


class SoFar:
    """Compares the arms' rows step by step, while they come in any order.

    arms: the names, the baseline first. other_tokens: the arms that do not keep bits, which are not compared.
    responses: number of responses of an arm in a step. once: only the first arm trains (task.train_once).
    """

    def __init__(self, arms: Sequence[str], other_tokens: Collection[str], responses: int, once: bool = False):
        self._baseline = arms[0]
        self._compared = [name for name in arms[1:] if name not in other_tokens]
        self._arms, self._responses = list(arms), responses
        self._once = once
        self._rows: dict[str, Mapping[str, Any]] = {}  # of the step that is under way
        self._seconds = dict.fromkeys(arms, 0.0)
        self._checked = 0  # responses that were compared with the baseline's
        self._differs = ""  # the first difference, in words

    def add(self, row: Mapping[str, Any]) -> str | None:
        """Take an arm's row of a step. Returns the verdict so far if it was the step's last arm, else None."""
        self._rows[row["arm"]] = row
        self._seconds[row["arm"]] += row["rollout_s"]
        if len(self._rows) < len(self._arms):
            return None
        base = self._rows[self._baseline]
        for name in self._compared:
            if not self._differs and any(first_differences([self._rows[name]], [base], self._once).values()):
                self._differs = f"NO, {name} differs since step {row['step']}"
            self._checked += self._responses
        self._rows = {}
        parts = [f"identical so far: {self._differs or f'yes ({self._checked} responses)'}"] if self._compared else []
        ratios = [f"{name} {self._seconds[name] / self._seconds[self._baseline]:.2f}" for name in self._arms[1:]]
        return " · ".join([*parts, f"{', '.join(ratios)} of {self._baseline}"])


def verdict_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the verdict of a finished comparison, in sentences: times first. result: the result of compare_arms."""
    arms, baseline, compared = result["arms"], result["baseline"], result["ratio_to_none"]
    lines = []
    for name, ratios in compared.items():
        times = [f"Rollouts: {_change(arms[baseline], arms[name], 'rollout_s')}."]
        if "step_s" in ratios:
            times.append(f"Whole run: {_change(arms[baseline], arms[name], 'step_s')}.")
        whose = f"{name} · " if len(compared) > 1 else ""
        lines.append(f"{whose}{' '.join(times)} {_sameness(result, name)}.")
    return [*lines, *identity_verdict(dict(result)).splitlines()]


def headline(result: Mapping[str, Any]) -> str:
    """Return the verdict of a finished comparison in one line, that of das where it is an arm, else of the last arm."""
    name = "das" if "das" in result["ratio_to_none"] else list(result["arms"])[-1]
    ratio = result["ratio_to_none"][name]["rollout_s"]["overall"]
    times = "no rollouts" if ratio is None else f"rollouts in {ratio:.2f} of the time of {result['baseline']}"
    said = _sameness(result, name)
    return f"{name}: {times}, {said[0].lower() + said[1:] if said[:3] != 'NOT' else said}"


def _change(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    """Return how long a part of a run takes in two arms: 4 min 48 s → 1 min 38 s."""
    return " → ".join(duration(arm[key]["n"] * arm[key]["mean"]) for arm in (before, after))


def _sameness(result: Mapping[str, Any], name: str) -> str:
    if name not in result["identical"]:
        return "Other tokens, as this arm samples its own"
    if not all(equal for what, equal in result["identical"][name].items() if what != "first_difference"):
        return f"NOT the same results as {result['baseline']}"
    return "Same tokens" if "trained" in result else "Same tokens, same weights"


def duration(seconds: float) -> str:
    """Return a time in words: 4 min 48 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def boxed(title: str, lines: Sequence[str]) -> str:
    """Return lines in a box of WIDTH columns, wrapped where they are longer."""
    inner = WIDTH - 4
    wrapped = [part for line in lines for part in textwrap.wrap(line, inner, subsequent_indent="  ")]
    body = [f"│ {line:<{inner}s} │" for line in wrapped]
    return "\n".join([f"╭─ {title} {'─' * (inner - len(title) - 1)}╮", *body, f"╰{'─' * (inner + 2)}╯"])
