"""LatencyModel: time of a target pass, learned from the engine's own passes while it decodes."""

from collections.abc import Callable

import numpy as np

from das.budget.latency_forms import Affine, Array, Form, Passes, fit_affine


class OnlineFit:
    """A latency form refitted to the latest passes, newer ones counting more.

    fit: of das.budget.latency_forms. `fitted` is None until ENOUGH passes were seen.
    error: mean absolute relative error of predictions made before the pass was seen, over some 200 passes; nan before
    the first.
    """

    MEMORY = 512  # passes remembered
    FORGET = 0.998  # weight of a pass falls by this at each newer one: the oldest weighs 0.36
    ENOUGH = 32  # passes before the first fit
    EVERY = 64  # passes from fit to fit: a fit takes 0.5 ms (affine) to 5 ms (two segments)

    def __init__(self, fit: Callable[[Passes, Array], Form]):
        self._fit = fit
        self._passes = np.zeros((4, self.MEMORY))  # live, tokens, context, seconds; a ring
        self._seen = self._fitted_at = 0
        self._watched = self._missed = 0.0
        self.fitted: Form | None = None

    @property
    def error(self) -> float:
        return self._missed / self._watched if self._watched else float("nan")

    def observe(self, live: int, tokens: int, context: int, seconds: float) -> None:
        """Learn from one pass."""
        self._passes[:, self._seen % self.MEMORY] = live, tokens, context, seconds
        self._seen += 1
        if self._seen == self.ENOUGH or self._seen % self.EVERY == 0:
            self._refit()

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


class LatencyModel:
    """The affine form (paper Eq 1), usable from the first pass on. Times in seconds.

    t_pass = c_base + c_tok * tokens        tokens = live requests + drafted tokens in the pass

    ratio: c_base / c_tok assumed until enough passes were seen, in tokens; it stays while passes of one size only, or a
    line with a coefficient of 0, tell nothing about it.
    """

    def __init__(self, ratio: float):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._assumed = ratio
        self._online = OnlineFit(fit_affine)
        self._seconds = self._tokens = self._seen = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one pass."""
        self._online.observe(0, tokens, 0, seconds)
        self._seconds, self._tokens, self._seen = self._seconds + seconds, self._tokens + tokens, self._seen + 1

    @property
    def error(self) -> float:
        """See OnlineFit."""
        return self._online.error

    def coefficients(self) -> tuple[float, float]:
        """(c_base, c_tok) in seconds; the assumed ratio, scaled to the passes seen, while the fit is not usable."""
        line = self._online.fitted
        if isinstance(line, Affine) and line.c_base > 0 and line.c_tok > 0:
            return line.c_base, line.c_tok
        c_tok = self._seconds / (self._seen * self._assumed + self._tokens) if self._seen else 1.0
        return c_tok * self._assumed, c_tok

    def predict(self, tokens: int) -> float:
        """Seconds of a pass with this many tokens."""
        c_base, c_tok = self.coefficients()
        return c_base + c_tok * tokens

    @property
    def ratio(self) -> float:
        """c_base / c_tok: how many tokens a pass carries for the price of starting it."""
        c_base, c_tok = self.coefficients()
        return c_base / c_tok
