"""The time of a pass, fitted to the timelines of rollouts that were measured.

A timeline has step_time_s (when each pass ended, in seconds since the rollout began), step_live and step_tokens
(requests, and requests + drafted tokens, of each pass).
"""

from typing import Any

import numpy as np

from das.budget.latency_forms import Form, Passes
from experiments.replay.latency_fits import FITS
from experiments.run.errors import UserError


def fit_prefill(timelines: list[dict[str, Any]], form: Form, prompt: int) -> float:
    """Seconds per prompt token: the time of each rollout's first pass beyond what decoding its live requests takes."""
    first, live = (np.array([line[key][0] for line in timelines], float) for key in ("step_time_s", "step_live"))
    beyond = float(np.mean(first - form.predict(live, live, live * prompt)))
    return max(0.0, beyond) / (float(live.mean()) * max(1, prompt))


def fit_form(timelines: list[dict[str, Any]], form: str) -> Form:
    """A latency form fitted to all passes except each rollout's first, which computed the prompts."""
    seconds = np.concatenate([np.diff(line["step_time_s"]) for line in timelines])
    live, tokens = (
        np.concatenate([line[key][1:] for line in timelines]).astype(float) for key in ("step_live", "step_tokens")
    )
    if len(seconds) < 10:
        raise UserError(f"{len(seconds)} decode passes were recorded: too few to fit a latency model to")
    passes = Passes(live, tokens, np.zeros(len(live)), seconds)
    return FITS[form](passes, np.ones(len(passes)))
