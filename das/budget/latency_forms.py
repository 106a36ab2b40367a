"""Forms of a target pass's time, and their fits to timed passes.

Affine       t = c_base + c_tok n                                             (paper Eq 1)
Drafting     t = base + row b + (drafting + token d) where d > 0              Eq 1 with separate costs of drafts
TwoSegment   one affine line up to a knot, another above it, because kernels change with the batch size
Roofline     t = max(memory + kv x, compute n) + request b                    (T_T and T_V of EfficientRollout)

n: tokens in the pass (live requests + drafted), b: live requests, d = n - b: drafted tokens, x: tokens of context
attended to. Times are in seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from das.budget import least_squares

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Passes:
    """Timed target passes: arrays of equal length."""

    live: Array  # requests
    tokens: Array  # live requests + drafted tokens
    context: Array  # tokens attended to
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, chosen: NDArray[np.bool_] | slice) -> "Passes":
        return Passes(self.live[chosen], self.tokens[chosen], self.context[chosen], self.seconds[chosen])


class Form(Protocol):
    """A fitted latency model."""

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        """Seconds of passes. The arrays broadcast."""


@dataclass(frozen=True)
class Affine:
    """A fixed time for each pass and a time for each token."""

    c_base: float  # seconds a pass
    c_tok: float  # seconds a token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.c_base + self.c_tok * tokens


@dataclass(frozen=True)
class Drafting:
    """Drafts add a fixed cost per pass (drafter, other kernels, bookkeeping) and a cost per drafted token."""

    base: float  # seconds a pass
    row: float  # seconds a live request
    drafting: float  # seconds a pass with drafts in it
    token: float  # seconds a drafted token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        num_drafted = tokens - live
        return self.base + self.row * live + np.where(num_drafted > 0, self.drafting + self.token * num_drafted, 0.0)


@dataclass(frozen=True)
class TwoSegment:
    """One line up to the knot, another above it."""

    below: Affine
    above: Affine
    knot: float  # the largest number of tokens of the first segment

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        below, above = (line.predict(live, tokens, context) for line in (self.below, self.above))
        return np.where(tokens <= self.knot, below, above)


@dataclass(frozen=True)
class Roofline:
    """The larger of memory time and compute time, plus a time for each request."""

    memory: float  # seconds to read the weights
    kv: float  # seconds a token of context
    compute: float  # seconds a token, once computing takes longer than reading
    request: float  # seconds a live request

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return np.maximum(self.memory + self.kv * context, self.compute * tokens) + self.request * live


OUTLIER = 3.0  # a pass this many times slower than the typical line was interrupted
SHARE = 0.2  # assumed drafting / base until passes show it
MADE_UP = 8.0  # weight of the synthetic passes that state SHARE while all timed passes carry drafts
KNOTS = 15  # positions tried for the knot of TwoSegment, in each of two rounds
ROUNDS = 12  # rounds of sorting passes into memory-bound and compute-bound; 3 to 6 usually settle it


def relative_weights(passes: Passes, age_weights: Array) -> tuple[Passes, Array]:
    """The uninterrupted passes, and the weights that make least squares minimise relative errors.

    An interrupted pass lies far above the typical line. The typical line minimises absolute relative errors, so it does
    not move even if half of the passes were interrupted.
    """
    columns = np.stack([np.ones(len(passes)), passes.tokens], axis=1)
    weights = age_weights / np.square(passes.seconds)
    line = columns @ least_squares.linear(columns, passes.seconds, weights)
    for _ in range(5):
        errors = np.maximum(np.abs(line / passes.seconds - 1), 1e-3)
        line = columns @ least_squares.linear(columns, passes.seconds, weights / errors)
    undisturbed = passes.seconds <= OUTLIER * line
    return passes[undisturbed], (age_weights / np.square(line))[undisturbed]


def fit_affine(passes: Passes, age_weights: Array) -> Affine:
    """Fit by least squares of relative errors, without interrupted passes. age_weights: the weight of each pass."""
    return _line(*relative_weights(passes, age_weights))


def _line(passes: Passes, weights: Array) -> Affine:
    """The least-squares line. If all passes have one size, c_tok cannot be known and is 0."""
    slope = np.ptp(passes.tokens) > 0
    columns = np.stack([np.ones(len(passes)), passes.tokens * slope], axis=1)
    return Affine(*map(float, least_squares.linear(columns, passes.seconds, weights)))


def fit_drafting(passes: Passes, age_weights: Array) -> Drafting:
    """Fit like fit_affine.

    While nearly all passes carry drafts, `drafting` cannot be told from `base`. A few synthetic passes then state that
    `drafting` is SHARE of `base`.
    """
    passes, weights = relative_weights(passes, age_weights)
    num_drafted = passes.tokens - passes.live
    columns = np.stack([np.ones(len(passes)), passes.live, num_drafted > 0, num_drafted], axis=1).astype(np.float64)
    columns = np.concatenate([columns, [[SHARE, 0, -1, 0]]])
    seconds = np.append(passes.seconds, 0.0)
    made_up = MADE_UP / (1 + np.count_nonzero(num_drafted == 0)) * weights.mean()
    return Drafting(*map(float, least_squares.linear(columns, seconds, np.append(weights, made_up))))


def fit_two_segment(passes: Passes, age_weights: Array) -> TwoSegment:
    """Fit two lines and a knot with the smallest error. Each line needs passes of at least 2 sizes.

    Two rounds: first quantiles of all sizes are tried as knots, then quantiles of the sizes around the best one.
    """
    passes, weights = relative_weights(passes, age_weights)
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


def fit_roofline(passes: Passes, age_weights: Array) -> Roofline:
    """Alternate: sort passes into memory-bound and compute-bound ones, solve, sort again by the solution.

    The first round guesses the ridge, the number of tokens at which a pass becomes compute-bound; several guesses are
    tried. A round can be worse than the previous one, so the best solution of all rounds is kept.
    """
    passes, weights = relative_weights(passes, age_weights)
    ones, zeros = np.ones(len(passes)), np.zeros(len(passes))
    best, least_error = Roofline(0.0, 0.0, 0.0, 0.0), np.inf
    for share in (0.25, 0.5, 0.75, 1.0):
        compute_bound = passes.tokens > np.quantile(passes.tokens, share)
        for _ in range(ROUNDS):
            columns = np.stack([np.where(compute_bound, zeros, column) for column in (ones, passes.context)], axis=1)
            columns = np.column_stack([columns, np.where(compute_bound, passes.tokens, zeros), passes.live])
            tried = Roofline(*map(float, least_squares.linear(columns, passes.seconds, weights)))
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
    """Mean absolute error of the predicted times, relative to the measured times."""
    predicted = form.predict(passes.live, passes.tokens, passes.context)
    return float(np.mean(np.abs(predicted / passes.seconds - 1)))


FITS: dict[str, Callable[[Passes, Array], Form]] = {
    "affine": fit_affine,
    "drafting": fit_drafting,
    "two_segment": fit_two_segment,
    "roofline": fit_roofline,
}
