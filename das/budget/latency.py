"""LatencyModel: the time of a target pass, learned from the engine's own passes while it decodes."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from das.budget.latency_forms import Drafting, Passes, fit_drafting
from das.budget.policies import TargetPass

MEMORY = 512  # number of passes that are remembered
FORGET = 0.998  # each newer pass reduces a pass's weight by this factor: the oldest weighs 0.36
FIRST_FIT = 32  # number of passes before the first fit
EVERY = 128  # the most passes between two fits; a fit takes some 0.5 ms
MIN_TOKEN_COST = 1e-4  # lower bound of a drafted token's cost, as a share of `base`
MANY_COUNTS = 4  # passes with this many different numbers of drafted tokens show the cost of a token


def read_drafting(path: Path) -> Drafting:
    """Read the form `Drafting` from a latency.json. Raises ValueError with a one-line message if the file lacks it."""
    try:
        form = Drafting(**json.loads(path.read_text())["forms"]["drafting"]["coefficients"])
        is_valid = form.base > 0 and all(0 <= value < math.inf for value in vars(form).values())  # False for NaN
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"budget.latency={path}: no latency.json of task=calibrate ({error!r})") from None
    if not is_valid:
        raise ValueError(f"budget.latency={path}: base must be above 0, nothing negative or infinite, got {form}")
    return replace(form, token=max(form.token, MIN_TOKEN_COST * form.base))


class LatencyModel:
    """A formula for the time of passes (`Drafting`), refitted to the latest ones, usable after the first one. Times are
    in seconds.

    ratio     base / token: how many drafted tokens cost as much as starting a pass. It is assumed until passes show
              the real ratio. (Passes of one size, or a fitted coefficient of 0, do not show it.)
    measured  a latency.json written by task=calibrate. It is used unchanged, and nothing is learned

    Raises ValueError for a ratio that is not positive and for a file without latencies.
    """

    def __init__(self, ratio: float, measured: str | None = None):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._measured = None if measured is None else read_drafting(Path(measured))
        self._ratio = ratio
        self._passes = np.zeros((4, MEMORY))  # live, tokens, context, seconds; a ring buffer
        self._seen = 0  # number of passes seen
        self._due = FIRST_FIT  # the number of passes seen at which the next fit is due
        self._seconds = self._tokens = 0.0  # sums over all passes seen
        self._draft_counts: set[int] = set()  # distinct numbers of drafted tokens seen in a pass, at most MANY_COUNTS
        self._fitted: Drafting | None = None

    def observe(self, done: TargetPass) -> None:
        """Learn the time of passes from one finished pass."""
        if self._measured is not None:
            return
        self._passes[:, self._seen % MEMORY] = done.live, done.tokens, done.context, done.seconds
        self._seen += 1
        self._seconds += done.seconds
        self._tokens += done.tokens
        if done.num_drafted and len(self._draft_counts) < MANY_COUNTS:
            self._draft_counts.add(done.num_drafted)
        if self._seen >= self._due:
            self._due += min(self._seen, EVERY)
            age = np.arange(min(self._seen, MEMORY), dtype=np.int64)[::-1]
            latest = self._passes[:, (self._seen - 1 - age) % MEMORY]
            self._fitted = fit_drafting(Passes(*latest), np.power(FORGET, age.astype(np.float64)))

    @property
    def form(self) -> Drafting:
        """The fitted formula. While no fit is usable: one with the assumed ratio, scaled to the observed passes."""
        if self._measured is not None:
            return self._measured
        # Enough different drafts have shown the cost of a token, even if it is near zero, as on GPUs.
        knows_token_cost = len(self._draft_counts) == MANY_COUNTS
        fitted = self._fitted
        if fitted is not None and fitted.base > 0 and (fitted.token > 0 or knows_token_cost):
            return replace(fitted, token=max(fitted.token, MIN_TOKEN_COST * fitted.base))
        token = self._seconds / (self._seen * self._ratio + self._tokens) if self._seen else 1.0
        return Drafting(token * self._ratio, token, 0.0, token)

    def predict(self, live: int, num_drafted: int, context: int) -> float:
        """Returns the predicted seconds of a pass; nan before the first observed pass."""
        if not self._seen and self._measured is None:
            return float("nan")
        return float(self.form.predict(*np.array([live, live + num_drafted, context], np.float64)))
