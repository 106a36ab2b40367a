"""LatencyModel: time of a target pass, affine in its tokens (paper Eq 1), fitted online to the engine's own passes.

t_pass = c_base + c_tok * tokens        tokens = live requests + drafted tokens in the pass
"""


class LatencyModel:
    """Least squares with exponential forgetting. Times in seconds.

    ratio: c_base / c_tok assumed until enough passes were seen, in tokens.
    """

    FORGET = 0.998  # weight of a pass falls by this at each newer one: a memory of some 500 passes
    ENOUGH = 30.0  # weight of passes seen before the fit is believed
    OUTLIER = 4.0  # a pass this many times slower than predicted was interrupted, not computed

    def __init__(self, ratio: float):
        if ratio <= 0:
            raise ValueError(f"latency ratio must be positive, got {ratio}")
        self._assumed = ratio
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Learn from one pass."""
        if self._n >= self.ENOUGH and seconds > self.OUTLIER * self.predict(tokens):
            return
        keep = self.FORGET
        self._n = self._n * keep + 1
        self._x = self._x * keep + tokens
        self._y = self._y * keep + seconds
        self._xx = self._xx * keep + tokens * tokens
        self._xy = self._xy * keep + tokens * seconds

    def coefficients(self) -> tuple[float, float]:
        """(c_base, c_tok) in seconds; the assumed ratio, scaled to the passes seen, while the fit is not usable."""
        spread = self._n * self._xx - self._x * self._x
        if self._n >= self.ENOUGH and spread > 0:
            c_tok = (self._n * self._xy - self._x * self._y) / spread
            c_base = (self._y - c_tok * self._x) / self._n
            if c_tok > 0 and c_base > 0:
                return c_base, c_tok
        c_tok = self._y / (self._n * self._assumed + self._x) if self._n else 1.0
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
