"""Words of EfficientRollout's figures: when its toggle turned drafting on in a rollout, and the lengths of its ladder.

Their runs are comparisons in which nobody trains.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.record import Record

LADDER = "self_draft_adaptive"  # the arm with the ladder
Trace = dict[str, Any]


def live_of(run: Record) -> int:
    """Return the number of responses in a step."""
    return int(run.config["trainer"]["per_device_train_batch_size"])


def traces(run: Record, arm: str) -> list[Trace]:
    """Return the timeline of each rollout of an arm."""
    return [run.timeline(f"arms/{arm}", row["step"]) for row in run[arm]]


def drafting(trace: Trace) -> np.ndarray:
    """Return for each pass whether most of three passes (itself and its neighbours) verified a draft; bool [passes].

    This ignores a single pass with drafts while the toggle is off (a trial), and one without drafts while it is on.
    """
    has_drafts = np.pad(np.array(trace["step_tokens"]) > np.array(trace["step_live"]), 1, mode="edge").astype(int)
    return np.asarray(has_drafts[:-2] + has_drafts[1:-1] + has_drafts[2:] >= 2)


def switch(trace: Trace) -> tuple[float, int] | None:
    """Return the share of passes before drafting begins, and the live requests then; None if drafting never begins."""
    on = drafting(trace)
    first = int(on.argmax())
    return (first / len(on), int(trace["step_live"][first])) if on.any() else None


def stays_on(trace: Trace) -> bool:
    """Return whether drafting, once begun, continues to the end of the rollout.

    Up to 5 % of the passes may have no drafts, because a request with one token left needs none.
    """
    on = drafting(trace)
    behind = on[int(on.argmax()) :]
    return bool(not on.any() or np.count_nonzero(~behind) <= len(on) * 0.05)


def ladder(run: Record) -> list[int]:
    """Return the ladder's draft length (its rung) in each rollout; 0 without drafts."""
    lengths = []
    for trace in traces(run, LADDER):
        live, tokens = np.array(trace["step_live"]), np.array(trace["step_tokens"])
        lengths.append(int(np.ceil(((tokens - live) / np.maximum(live, 1)).max(initial=0))))
    return lengths


def accepted_shares(run: Record) -> list[float]:
    """Return accepted / drafted tokens of each rollout with the ladder; nan without drafts."""
    return [row["accepted"] / row["drafted"] if row["drafted"] else float("nan") for row in run[LADDER]]


def follows_rule(lengths: Sequence[int], accepted: Sequence[float], up: float = 0.94) -> bool:
    """Return whether the ladder moved up exactly when two rollouts in a row on a rung had accepted a share `up` or
    more."""
    since = 0  # rollouts on this rung (with this draft length)
    for i in range(1, len(lengths)):
        since += 1
        climbed = lengths[i] > lengths[i - 1]
        may = since >= 2 and min(accepted[i - 1], accepted[i - 2]) >= up and lengths[i - 1] < 11
        if climbed != may:
            return False
        since = 0 if climbed else since
    return True
