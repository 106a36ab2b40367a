"""Fit latency forms to timed passes: Affine and Drafting (experiments.simulate.times.Form), and two forms defined here.

TwoSegment   one straight line up to a knot and another above it, because kernels change with the batch size
Roofline     t = max(memory + kv x, compute n) + request b                    (T_T and T_V of EfficientRollout)

n: tokens in the pass (live requests + drafted), b: live requests, x: tokens of context attended to. Times are in
seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from das.budget.latency import Array
from experiments.simulate.latency_forms import Passes, fit_drafting, linear, relative_weights
from experiments.simulate.times import Affine, Form

KNOTS = 15  # number of positions that each of two rounds tries for the knot of TwoSegment
ROUNDS = 12  # rounds of sorting passes into memory-bound and compute-bound ones; 3 to 6 are usually enough


@dataclass(frozen=True)
class TwoSegment:
    """A latency form: the time of a pass is one straight line up to a number of tokens (the knot), and another line
    above it."""

    below: Affine
    above: Affine
    knot: float  # the largest number of tokens of the first segment

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        below, above = (line.predict(live, tokens, context) for line in (self.below, self.above))
        return np.where(tokens <= self.knot, below, above)


@dataclass(frozen=True)
class Roofline:
    """A latency form: the time of a pass is the larger of its memory time and its compute time, plus a time for each
    request."""

    memory: float  # seconds to read the weights
    kv: float  # seconds per token of context
    compute: float  # seconds per token; counts if computing takes longer than reading
    request: float  # seconds per live request

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return np.maximum(self.memory + self.kv * context, self.compute * tokens) + self.request * live


def fit_affine(passes: Passes) -> Affine:
    """Fit by least squares of relative errors. Passes that were interrupted do not count."""
    return _line(*relative_weights(passes))


def _line(passes: Passes, weights: Array) -> Affine:
    """Return the least-squares line. If all passes have the same number of tokens, c_tok cannot be known and is 0."""
    slope = np.ptp(passes.tokens) > 0
    columns = np.stack([np.ones(len(passes)), passes.tokens * slope], axis=1)
    return Affine(*map(float, linear(columns, passes.seconds, weights)))


def fit_two_segment(passes: Passes) -> TwoSegment:
    """Fit two lines and a knot with the smallest error. Each line needs passes of at least 2 sizes.

    A size is a number of tokens. The first round tries quantiles of all sizes as knots, the second round quantiles of
    the sizes around the best knot.
    """
    passes, weights = relative_weights(passes)
    one_line = _line(passes, weights)
    best = TwoSegment(one_line, one_line, float(passes.tokens.max()))
    least_error = _squared_error(one_line, passes, weights)
    sizes = np.unique(passes.tokens)
    for _ in range(2):
        knots = np.unique(np.quantile(sizes, np.linspace(0, 1, KNOTS), method="lower"))
        for knot in knots:
            low = passes.tokens <= knot
            if min(len(np.unique(passes.tokens[side])) for side in (low, ~low)) < 2:
                continue
            tried = TwoSegment(_line(passes[low], weights[low]), _line(passes[~low], weights[~low]), float(knot))
            error = _squared_error(tried, passes, weights)
            if error < least_error:
                best, least_error = tried, error
        at = int(np.searchsorted(knots, best.knot))
        around = knots[max(0, at - 1)], knots[min(len(knots) - 1, at + 1)]
        sizes = sizes[(sizes >= around[0]) & (sizes <= around[1])]
    return best


def fit_roofline(passes: Passes) -> Roofline:
    """Fit the roofline. A round sorts passes into memory-bound and compute-bound ones, and solves for the constants.

    The first round sorts by a guess of the ridge, the number of tokens at which a pass becomes compute-bound; several
    guesses are tried. Later rounds sort by the last solution. A round can be worse than the previous one, so the best
    solution of all rounds is kept.
    """
    passes, weights = relative_weights(passes)
    ones, zeros = np.ones(len(passes)), np.zeros(len(passes))
    best, least_error = Roofline(0.0, 0.0, 0.0, 0.0), np.inf
    for share in (0.25, 0.5, 0.75, 1.0):
        compute_bound = passes.tokens > np.quantile(passes.tokens, share)
        for _ in range(ROUNDS):
            columns = np.stack([np.where(compute_bound, zeros, column) for column in (ones, passes.context)], axis=1)
            columns = np.column_stack([columns, np.where(compute_bound, passes.tokens, zeros), passes.live])
            tried = Roofline(*map(float, linear(columns, passes.seconds, weights)))
            error = _squared_error(tried, passes, weights)
            if error < least_error:
                best, least_error = tried, error
            sorted_again = tried.compute * passes.tokens > tried.memory + tried.kv * passes.context
            if (sorted_again == compute_bound).all():
                break
            compute_bound = sorted_again
    return best


def _squared_error(form: Form, passes: Passes, weights: Array) -> float:
    return float(weights @ np.square(form.predict(passes.live, passes.tokens, passes.context) - passes.seconds))


def relative_error(form: Form, passes: Passes) -> float:
    """Return the mean absolute error of the predicted times, relative to the measured times."""
    predicted = form.predict(passes.live, passes.tokens, passes.context)
    return float(np.mean(np.abs(predicted / passes.seconds - 1)))


FITS: dict[str, Callable[[Passes], Form]] = {
    "affine": fit_affine,
    "drafting": fit_drafting,
    "two_segment": fit_two_segment,
    "roofline": fit_roofline,
}
