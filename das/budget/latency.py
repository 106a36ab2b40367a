"""LatencyModel: the time of a target pass, learned from the engine's own passes while it decodes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from das.budget.latency_forms import Array, Drafting, Form, Passes, fit_drafting
from das.budget.policies import TargetPass

MIN_TOKEN_COST = 1e-4  # lower bound of a drafted token's cost, as a share of `base`
MANY_COUNTS = 4  # passes with this many different numbers of drafted tokens show the cost of a token


class OnlineFit:
    """A latency form that is refitted to the latest passes. Newer passes count more.

    fit    a fit of das.budget.latency_forms
    every  passes between fits, once many passes have been seen; a fit takes 0.5 ms (affine) to 5 ms (two segments)

    `fitted` is None until FIRST_FIT passes have been seen. `error` is the mean absolute relative error of the
    predictions for the last 200 passes or so, each made before its pass; nan before the first prediction.
    """

    MEMORY = 512  # passes remembered
    FORGET = 0.998  # each newer pass reduces a pass's weight by this factor: the oldest weighs 0.36
    FIRST_FIT = 32  # passes before the first fit

    def __init__(self, fit: Callable[[Passes, Array], Form], every: int = 128):
        self._fit = fit
        self._every = every
        self._passes = np.zeros((4, self.MEMORY))  # live, tokens, context, seconds; a ring buffer
        self._seen = self._fitted_at = 0
        self._due = self.FIRST_FIT  # the number of passes seen at which the next fit is due
        self._num_predictions = self._sum_errors = 0.0  # of recent predictions, by exponential forgetting
        self.fitted: Form | None = None

    @property
    def error(self) -> float:
        return self._sum_errors / self._num_predictions if self._num_predictions else float("nan")

    def observe(self, live: int, tokens: int, context: int, seconds: float) -> None:
        """Learn from one pass."""
        self._passes[:, self._seen % self.MEMORY] = live, tokens, context, seconds
        self._seen += 1
        if self._seen >= self._due:
            self._refit()
            self._due += min(self._seen, self._every)

    def _refit(self) -> None:
        count = min(self._seen, self.MEMORY)
        order = np.arange(self._seen - count, self._seen) % self.MEMORY
        passes = Passes(*self._passes[:, order])
        if self.fitted is not None:
            new = passes[slice(self._fitted_at - self._seen, None)]
            errors = np.abs(self.fitted.predict(new.live, new.tokens, new.context) / new.seconds - 1)
            memory = 0.995 ** len(new)
            self._sum_errors = self._sum_errors * memory + float(errors.sum())
            self._num_predictions = self._num_predictions * memory + len(new)
        self._fitted_at = self._seen
        self.fitted = self._fit(passes, np.power(self.FORGET, np.arange(count - 1, -1, -1, dtype=np.float64)))


def read_drafting(path: Path) -> Drafting:
    """Read the form `Drafting` from a latency.json. Raises ValueError, in one line, for a file without one."""
    try:
        form = Drafting(**json.loads(path.read_text())["forms"]["drafting"]["coefficients"])
        is_valid = form.base > 0 and all(0 <= value < math.inf for value in vars(form).values())  # False for NaN
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"budget.latency={path}: no latency.json of task=calibrate ({error!r})") from None
    if not is_valid:
        raise ValueError(f"budget.latency={path}: base must be above 0, nothing negative or infinite, got {form}")
    return replace(form, token=max(form.token, MIN_TOKEN_COST * form.base))


class LatencyModel:
    """The form `Drafting`, usable from the first pass on. Times are in seconds.

    ratio     base / token: how many drafted tokens cost as much as starting a pass. It is assumed until passes show
              the real ratio. (Passes of one size, or a fitted coefficient of 0, do not show it.)
    measured  a latency.json written by task=calibrate. It is used unchanged, and nothing is learned

    Raises ValueError for a ratio that is not positive and for a file without latencies.
    """

    def __init__(self, ratio: float, measured: str | None = None):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._measured = None if measured is None else read_drafting(Path(measured))
        self._assumed = ratio
        self._online = OnlineFit(fit_drafting)
        self._seconds = self._tokens = self._seen = 0.0
        self._draft_counts: set[int] = set()  # distinct numbers of drafted tokens seen in a pass, at most MANY_COUNTS

    def observe(self, done: TargetPass) -> None:
        """Learn from one pass."""
        if self._measured is not None:
            return
        self._online.observe(done.live, done.tokens, done.context, done.seconds)
        if done.num_drafted and len(self._draft_counts) < MANY_COUNTS:
            self._draft_counts.add(done.num_drafted)
        self._seconds += done.seconds
        self._tokens += done.tokens
        self._seen += 1

    @property
    def error(self) -> float:
        """Mean absolute relative error of recent predictions, as in OnlineFit."""
        return self._online.error

    @property
    def _knows_token_cost(self) -> bool:
        """Whether passes have shown the cost of a drafted token, even a cost near zero (GPUs)."""
        return len(self._draft_counts) == MANY_COUNTS

    @property
    def form(self) -> Drafting:
        """The fitted form. While the fit is not usable: the assumed ratio, scaled to the passes seen."""
        if self._measured is not None:
            return self._measured
        fitted = self._online.fitted
        if isinstance(fitted, Drafting) and fitted.base > 0 and (fitted.token > 0 or self._knows_token_cost):
            min_token = MIN_TOKEN_COST * fitted.base
            return fitted if fitted.token >= min_token else replace(fitted, token=min_token)
        token = self._seconds / (self._seen * self._assumed + self._tokens) if self._seen else 1.0
        return Drafting(token * self._assumed, token, 0.0, token)

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        """Predicted seconds of a pass; nan before the first observed pass."""
        if not self._seen and self._measured is None:
            return float("nan")
        form = self.form
        return form.base + form.row * live + (form.drafting + form.token * num_drafted if num_drafted else 0.0)
