"""Computes the problem id of a row of the trainer's dataset, and the history tick that the training has reached."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def history_tick(unit: str, rollouts: int, rows: int | None, problems: int) -> int:
    """Returns the history tick after `rollouts` rollouts of `problems` problems each. The drafter's window counts
    ticks.

    unit: "step" counts rollouts, "epoch" counts passes through the dataset's `rows`. If the dataset has no length
    (None), rollouts are counted.
    """
    if unit == "step" or rows is None:
        return rollouts
    return rollouts // max(1, rows // problems)  # TRL leaves out the rows that fill no batch


def problem_id(row: Mapping[str, Any], whole_row: bool = False) -> str:
    """Returns the row's `problem_id` or, without one, a digest of its prompt (text or conversation) and its images, or
    of the whole row.
    """
    if "problem_id" in row:
        return str(row["problem_id"])
    images = [row[name] for name in ("image", "images") if name in row]  # TRL's columns
    asked = row if whole_row else [row["prompt"], images] if images else row["prompt"]
    text = json.dumps(asked, sort_keys=True, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> str:
    """Returns a text that stands for a value that JSON lacks: an image's content, because its repr names its place in
    memory."""
    return hashlib.sha256(value.tobytes()).hexdigest() if hasattr(value, "tobytes") else repr(value)
