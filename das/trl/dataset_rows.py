"""The trainer's dataset tells the problem of each row, and how far the training has come."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def history_tick(unit: str, rollouts: int, rows: int | None, problems: int) -> int:
    """The history tick, which the drafter's window counts, after `rollouts` rollouts of `problems` problems each.

    unit: "step" counts rollouts, "epoch" counts passes through the dataset's `rows`. A dataset without a length (None)
    has no epochs, so there, too, rollouts are counted.
    """
    if unit == "step" or rows is None:
        return rollouts
    return rollouts // max(1, rows // problems)  # TRL leaves out the rows that fill no batch


def problem_id(row: Mapping[str, Any], whole_row: bool = False) -> str:
    """The row's `problem_id`; or else a digest of its prompt, a text or a conversation, or of all its columns."""
    if "problem_id" in row:
        return str(row["problem_id"])
    text = json.dumps(row if whole_row else row["prompt"], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
