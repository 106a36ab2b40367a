"""DAS (arXiv 2511.13841): how often drafted tokens would have to be right for maths' "more than 50 %"."""

from collections.abc import Sequence

import numpy as np

from analysis.quantities import percent
from analysis.report import Table
from experiments.simulate.cluster import Step
from experiments.simulate.times import Times

LIVE = (16, 64, 128, 256)  # requests of a pass
SAVED = 0.5  # share of the time of a token that is to be saved
LONGEST = 64  # drafted tokens of a request, at most


def sensitivity(priced: Sequence[tuple[str, Times, Sequence[Step]]], context: float) -> Table:
    """Return the table of what would save half of the time, beside what the recorded text gave, by live requests.

    priced: for each list of prices its name, its times, and rollouts with drafts that do not branch. context: tokens of
    prompt and response of a request, on average.
    """
    rows = []
    for name, times, steps in priced:
        rows.append([f"{name}: needed", *(needed(times, live, context) for live in LIVE)])
        rows.append([f"{name}: the text gave", *(given(steps, live) for live in LIVE)])
    return Table(["right of the drafted tokens, tokens per pass", *(f"{live} live" for live in LIVE)], rows)


def needed(times: Times, live: int, context: float) -> str:
    """Return in words the lowest probability of a drafted token to be right, given that those before it are, with which
    chains of one length save SAVED of the time; or what right drafts save at most, if no probability is enough."""
    drafted_K, chance_C = np.arange(1, LONGEST + 1), np.linspace(0, 1, 1001)
    emitted_C_K = 1 + np.cumsum(chance_C[:, None] ** drafted_K, axis=1)
    in_all = int(live * context)
    seconds_K = np.array([times.target(live, live * int(drafted), in_all) for drafted in drafted_K])
    seconds_K += live * times.draft_request
    saved_C_K = 1 - seconds_K / times.target(live, 0, in_all) / emitted_C_K
    enough = np.flatnonzero(saved_C_K.max(axis=1) >= SAVED)
    if not len(enough):
        return f"never: {percent(float(saved_C_K.max()))} at most"
    chance, length = enough[0], saved_C_K[enough[0]].argmax()
    return f"{chance_C[chance]:.2f} of {drafted_K[length]}, {emitted_C_K[chance, length]:.2f}"


def given(steps: Sequence[Step], live: int) -> str:
    """Return in words what passes of about this many live requests accepted: the share of the drafted tokens, their
    number for each request, and tokens per pass."""
    requests, rows, emitted = (
        np.concatenate([step.timelines[0][name] for step in steps]) for name in ("live", "tokens", "emitted")
    )
    near = abs(requests - live) <= live / 4
    if not near.any():
        return ""
    passes, drafted, tokens = requests[near].sum(), (rows - requests)[near].sum(), emitted[near].sum()
    return f"{(tokens - passes) / max(drafted, 1):.2f} of {drafted / passes:.1f}, {tokens / passes:.2f}"
