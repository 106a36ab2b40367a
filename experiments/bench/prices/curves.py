"""Made-up times of target passes: lines, knees, stairs, noise, drift, bursts. A seed makes a curve."""

from dataclasses import dataclass, replace

import numpy as np

KINDS = ("line", "knee", "stairs", "noise", "drift", "bursts")


@dataclass(frozen=True)
class Curve:
    """Seconds of a pass, by its tokens, its live requests and the seconds since the rollout began."""

    kind: str
    base: float  # seconds of the smallest pass
    row: float = 0.0  # a live request
    drafting: float = 0.0  # a pass with drafts in it
    token: float = 0.0  # a token of the pass, as long as none of the following holds
    knee: float = np.inf  # tokens from which a token costs `beyond` more
    beyond: float = 0.0
    step: int = 0  # tokens of a step; each step costs `rise`
    rise: float = 0.0
    noise: float = 0.02  # standard deviation of the logarithm of a measured time
    interrupted: float = 0.0  # share of the passes that take 3 to 30 times as long
    burst: float = 0.0  # chance that a pass begins a burst, in which other work takes the machine
    burst_passes: float = 0.0  # passes of a burst, on average
    drift_s: float = np.inf  # seconds after which all times are `slower`, and the knee is where it was times `moved`
    sudden: bool = False  # the drift comes at once, after half of these seconds
    slower: float = 1.0
    moved: float = 1.0

    def seconds(self, live: int, extra: np.ndarray, now: float) -> np.ndarray:
        """Of passes with `extra` tokens beside those of the live requests. Without noise."""
        drifted = float(now > self.drift_s / 2) if self.sudden else min(1.0, now / self.drift_s)
        knee = self.knee * self.moved**drifted
        tokens = live + np.asarray(extra, np.float64)
        seconds = self.base + self.row * live + self.token * tokens + self.drafting * (tokens > live)
        if np.isfinite(knee):
            seconds = seconds + self.beyond * np.maximum(0.0, tokens - knee)
        if self.step:
            seconds = seconds + self.rise * np.ceil(tokens / self.step)
        return np.asarray(seconds * self.slower**drifted)

    def measured(self, seconds: float, rng: np.random.Generator) -> float:
        """What the clock shows: with noise and interruptions."""
        interruption = rng.uniform(3, 30) if rng.random() < self.interrupted else 1.0
        return float(seconds * rng.lognormal(0, self.noise) * interruption)


HARD_KNEE = Curve("knee", base=10e-3, knee=32, beyond=1e-3)  # with 32 live requests, a draft never pays


def make_curve(seed: int, live: int) -> Curve:
    """The curve of a seed; seeds take the kinds in turn. live: requests at the start of the rollout."""
    rng = np.random.default_rng([seed, 7])
    kind = KINDS[seed % len(KINDS)]
    shape = kind if kind in KINDS[:3] else KINDS[int(rng.integers(3))]
    curve = _shape(shape, live, rng)
    if kind == "noise":
        curve = replace(curve, noise=float(rng.uniform(0.05, 0.25)), interrupted=float(rng.uniform(0, 0.04)))
    if kind == "bursts":
        curve = replace(curve, noise=0.05, burst=0.02, burst_passes=float(rng.uniform(3, 20)))
    if kind == "drift":
        curve = replace(
            curve,
            drift_s=float(rng.uniform(100, 400)) * float(curve.seconds(live, np.zeros(1), 0.0)[0]),
            sudden=bool(rng.random() < 0.3),
            slower=float(np.exp(rng.uniform(-0.5, 0.7))),
            moved=float(np.exp2(rng.uniform(-1.5, 1.5))),
        )
    return replace(curve, kind=kind)


def _shape(shape: str, live: int, rng: np.random.Generator) -> Curve:
    base = float(rng.uniform(3e-3, 30e-3))
    row = float(rng.choice([0.0, 0.3, 1.0])) * base / live
    drafting = float(rng.choice([0.0, 0.03, 0.15])) * base
    if shape == "line":
        return Curve(shape, base, row, drafting, token=base / float(np.exp(rng.uniform(np.log(8), np.log(1000)))))
    if shape == "knee":
        knee = live * float(np.exp(rng.uniform(np.log(0.7), np.log(8))))
        beyond = base / live * float(np.exp(rng.uniform(np.log(0.1), np.log(4))))
        flat = base / live * float(rng.choice([0.0, 0.02]))
        return Curve(shape, base, row, drafting, flat, knee, beyond)
    step = int(rng.choice([8, 16, 32, 64]))
    rise = base * step / live * float(np.exp(rng.uniform(np.log(0.03), np.log(1.5))))
    knee = live * float(np.exp(rng.uniform(np.log(1.5), np.log(16))))
    return Curve(shape, base, row, drafting, 0.0, knee, 2 * rise / step, step, rise)
