"""Helpers for all sections: the rows of a comparison's arms, totals over steps, and colours.

A pass is a target pass; the DAS paper calls it a verification round.
"""

from pathlib import Path
from typing import Any

from analysis import read

Rows = list[dict[str, Any]]


def rows(run: Path, arm: str) -> Rows:
    """Read metrics.jsonl of one arm of a comparison, one row for each step."""
    return read.metrics(run / "arms" / arm)


def arm_names(run: Path) -> list[str]:
    """Return the arms of a comparison. The first is the baseline."""
    return list(read.result(run)["arms"])


def total(steps: Rows, key: str) -> float:
    """Return a metric's sum over steps."""
    return float(sum(row[key] for row in steps))


def accepted_per_pass(steps: Rows) -> float:
    """Return the accepted draft tokens per target pass: tokens per pass - 1. The paper reports this quantity."""
    return total(steps, "accepted") / total(steps, "passes")


def last_half(steps: Rows) -> Rows:
    """Return the second half of the steps, in which the drafter has a history of past responses."""
    return steps[len(steps) // 2 :]


def percent(value: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * value:.1f} %"


def identity_text(run: Path) -> str:
    """Return in words whether all arms of a comparison have identical bits."""
    result = read.result(run)
    compared = result["identical"]
    if not compared:
        return "not compared: no arm has to be identical"
    differing = [
        f"{name}: {what}"
        for name, checks in compared.items()
        for what, equal in checks.items()
        if what != "first_difference" and not equal
    ]
    if differing:
        return "differ: " + ", ".join(differing)
    if result.get("trained_once"):
        return "equal completions and rewards; weights: trained once"
    return "equal in every bit, also the optimizer's state"


def is_identical(run: Path) -> bool:
    """Return whether every arm's results equal the baseline's, bit for bit."""
    return identity_text(run).startswith("equal")


def policy_note(run: Path) -> str:
    """Return a sentence about a comparison: its policy, its data, its number of steps and the sizes of a step."""
    config, result = read.config(run), read.result(run)
    steps = result["arms"][result["baseline"]]["rollout_s"]["n"]
    trainer = config["trainer"]
    responses = trainer["per_device_train_batch_size"] * trainer.get("gradient_accumulation_steps", 1)
    problems = responses * config.get("engine", {}).get("processes", 1) // trainer["num_generations"]
    return (
        f"Policy {config['policy']['name']}, data {config['data']['name']}; {steps} steps of {problems} problems x "
        f"{trainer['num_generations']} responses of at most {trainer['max_completion_length']} tokens."
    )
