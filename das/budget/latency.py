"""LatencyModel: time of a target pass, learned from the engine's own passes while it decodes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from das.budget.latency_forms import Array, Drafting, Form, Passes, fit_drafting
from das.budget.policies import TargetPass

LEAST_TOKEN = 1e-4  # of base: what a drafted token costs at least


class OnlineFit:
    """A latency form refitted to the latest passes, newer ones counting more.

    fit: of das.budget.latency_forms. every: passes from fit to fit once many were seen; one takes 0.5 ms
    (affine) to 5 ms (two segments).
    `fitted` is None until ENOUGH passes were seen.
    error: mean absolute relative error of predictions made before the pass was seen, over some 200 passes; nan before
    the first.
    """

    MEMORY = 512  # passes remembered
    FORGET = 0.998  # weight of a pass falls by this at each newer one: the oldest weighs 0.36
    ENOUGH = 32  # passes before the first fit

    def __init__(self, fit: Callable[[Passes, Array], Form], every: int = 128):
        self._fit = fit
        self._every = every
        self._passes = np.zeros((4, self.MEMORY))  # live, tokens, context, seconds; a ring
        self._seen = self._fitted_at = 0
        self._due = self.ENOUGH  # passes seen at which to fit next
        self._watched = self._missed = 0.0
        self.fitted: Form | None = None

    @property
    def error(self) -> float:
        return self._missed / self._watched if self._watched else float("nan")

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
            away = np.abs(self.fitted.predict(new.live, new.tokens, new.context) / new.seconds - 1)
            keep = 0.995 ** len(new)
            self._missed = self._missed * keep + float(away.sum())
            self._watched = self._watched * keep + len(new)
        self._fitted_at = self._seen
        self.fitted = self._fit(passes, np.power(self.FORGET, np.arange(count - 1, -1, -1, dtype=np.float64)))


def read_drafting(path: Path) -> Drafting:
    """The form `Drafting` of a latency.json. Raises ValueError, in one line, for a file that holds none."""
    try:
        found = Drafting(**json.loads(path.read_text())["forms"]["drafting"]["coefficients"])
        sound = found.base > 0 and all(0 <= value < math.inf for value in vars(found).values())  # NaN is neither
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"budget.latency={path}: no latency.json of task=calibrate ({error!r})") from None
    if not sound:
        raise ValueError(f"budget.latency={path}: base must be above 0, nothing negative or infinite, got {found}")
    return replace(found, token=max(found.token, LEAST_TOKEN * found.base))


class LatencyModel:
    """The form `Drafting`, usable from the first pass on. Times in seconds.

    measured: a latency.json that task=calibrate wrote; used as it is, nothing is learned.
    ratio: what a pass carries for the price of starting it, in tokens: base / token, assumed until enough passes were
    seen; it stays while they tell nothing about it (passes of one size, a coefficient of 0).
    """

    def __init__(self, ratio: float, measured: str | None = None):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._measured = None if measured is None else read_drafting(Path(measured))
        self._assumed = ratio
        self._online = OnlineFit(fit_drafting)
        self._seconds = self._tokens = self._seen = 0.0
        self._drafted: set[int] = set()  # a few of the numbers of drafted tokens seen

    def observe(self, done: TargetPass) -> None:
        """Learn from one pass."""
        if self._measured is not None:
            return
        self._online.observe(done.live, done.tokens, done.context, done.seconds)
        if done.num_drafted and len(self._drafted) < 4:
            self._drafted.add(done.num_drafted)
        self._seconds, self._tokens, self._seen = (
            self._seconds + done.seconds,
            self._tokens + done.tokens,
            self._seen + 1,
        )

    @property
    def error(self) -> float:
        """See OnlineFit."""
        return self._online.error

    @property
    def _drafted_differently(self) -> bool:
        """Passes told what a drafted token costs, if only that it costs nothing to speak of (GPUs)."""
        return len(self._drafted) == 4

    @property
    def form(self) -> Drafting:
        """The fit; the assumed ratio, scaled to the passes seen, while the fit is not usable."""
        if self._measured is not None:
            return self._measured
        fitted = self._online.fitted
        if isinstance(fitted, Drafting) and fitted.base > 0 and (fitted.token > 0 or self._drafted_differently):
            least = LEAST_TOKEN * fitted.base
            return fitted if fitted.token >= least else replace(fitted, token=least)
        token = self._seconds / (self._seen * self._assumed + self._tokens) if self._seen else 1.0
        return Drafting(token * self._assumed, token, 0.0, token)

    def predict(self, live: int, drafted: int, context: int) -> float:
        """Seconds of a pass; nan before the first was seen."""
        if not self._seen and self._measured is None:
            return float("nan")
        form = self.form
        return form.base + form.row * live + (form.drafting + form.token * drafted if drafted else 0.0)
