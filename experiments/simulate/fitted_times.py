"""Fit the time of a pass to the timelines of measured rollouts.

A timeline has three lists with an entry for each pass: step_time_s (the pass's end, in seconds since the rollout
began), step_live (live requests) and step_tokens (live requests + drafted tokens).
"""

from typing import Any

import numpy as np

from experiments.run.errors import UserError
from experiments.simulate.latency_fits import FITS
from experiments.simulate.latency_forms import Passes
from experiments.simulate.times import Form


def fit_prefill(timelines: list[dict[str, Any]], form: Form, prompt: int) -> float:
    """Return the seconds that a pass takes for each prompt token, fitted to the first pass of each rollout. form:
    predicts the time of such a pass without its prompts. prompt: tokens of each prompt."""
    first, live = (np.array([line[key][0] for line in timelines], float) for key in ("step_time_s", "step_live"))
    beyond = float(np.mean(first - form.predict(live, live, live * prompt)))
    return max(0.0, beyond) / (float(live.mean()) * max(1, prompt))


def fit_form(timelines: list[dict[str, Any]], form: str) -> Form:
    """Fit the form `form`, a name in FITS, to all passes except each rollout's first, which computed the prompts."""
    seconds = np.concatenate([np.diff(line["step_time_s"]) for line in timelines])
    live, tokens = (
        np.concatenate([line[key][1:] for line in timelines]).astype(float) for key in ("step_live", "step_tokens")
    )
    if len(seconds) < 10:
        raise UserError(f"{len(seconds)} decode passes were recorded: too few to fit a latency model to")
    return FITS[form](Passes(live, tokens, np.zeros(len(live)), seconds))
