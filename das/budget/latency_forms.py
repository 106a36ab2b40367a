"""Forms of a target pass's time, and their fits to passes seen.

Affine       t = c_base + c_tok n                                             (paper Eq 1)
Drafting     t = base + row b + (drafting + token d) where d > 0              Eq 1 with the costs of drafts told apart
TwoSegment   one such line up to a knot, another above it: kernels change with the batch
Roofline     t = max(memory + kv x, compute n) + request b                    (T_T and T_V of das.budget.roofline)

n tokens in the pass (live requests + drafted), b live requests, d = n - b drafted, x tokens of context they attend to.
Times in seconds.
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
    """Target passes that were timed; arrays of equal length."""

    live: Array
    tokens: Array
    context: Array
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, chosen: NDArray[np.bool_] | slice) -> "Passes":
        return Passes(self.live[chosen], self.tokens[chosen], self.context[chosen], self.seconds[chosen])


class Form(Protocol):
    """A fitted latency model."""

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        """Seconds of passes; arrays that broadcast."""


@dataclass(frozen=True)
class Affine:
    c_base: float  # seconds a pass
    c_tok: float  # seconds a token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.c_base + self.c_tok * tokens


@dataclass(frozen=True)
class Drafting:
    """Engines pay for drafts at all (drafting, other kernels, bookkeeping) beside paying for each drafted token."""

    base: float  # seconds a pass
    row: float  # seconds a live request
    drafting: float  # seconds a pass with drafts in it
    token: float  # seconds a drafted token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        drafted = tokens - live
        return self.base + self.row * live + np.where(drafted > 0, self.drafting + self.token * drafted, 0.0)


@dataclass(frozen=True)
class TwoSegment:
    below: Affine
    above: Affine
    knot: float  # the most tokens of the first segment

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        below, above = (line.predict(live, tokens, context) for line in (self.below, self.above))
        return np.where(tokens <= self.knot, below, above)


@dataclass(frozen=True)
class Roofline:
    memory: float  # seconds to read the weights
    kv: float  # seconds a token of context
    compute: float  # seconds a token, once more are computed than the reading hides
    request: float  # seconds a live request

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return np.maximum(self.memory + self.kv * context, self.compute * tokens) + self.request * live


OUTLIER = 3.0  # a pass this many times slower than the typical line was interrupted, not computed
SHARE = 0.2  # `drafting` of `base`, until seen
MADE_UP = 8.0  # passes that say so while all seen carry drafts
KNOTS = 15  # places tried for the knot of TwoSegment, twice
ROUNDS = 12  # of sorting passes into memory-bound and compute-bound; it settles in 3 to 6


def relative_weights(passes: Passes, age_weights: Array) -> tuple[Passes, Array]:
    """The passes that were not interrupted, and weights that make least squares count relative errors.

    The typical line is fitted by least absolute relative errors: up to half of the passes may lie anywhere above it.
    """
    columns = np.stack([np.ones(len(passes)), passes.tokens], axis=1)
    weights = age_weights / np.square(passes.seconds)
    line = columns @ least_squares.linear(columns, passes.seconds, weights)
    for _ in range(5):
        away = np.maximum(np.abs(line / passes.seconds - 1), 1e-3)
        line = columns @ least_squares.linear(columns, passes.seconds, weights / away)
    computed = passes.seconds <= OUTLIER * line
    return passes[computed], (age_weights / np.square(line))[computed]


def fit_affine(passes: Passes, age_weights: Array) -> Affine:
    """Least squares of relative errors, interrupted passes left out. Weights: how much each pass counts."""
    return _line(*relative_weights(passes, age_weights))


def _line(passes: Passes, weights: Array) -> Affine:
    """Passes of one size say nothing about tokens: c_tok is 0 then."""
    slope = np.ptp(passes.tokens) > 0
    columns = np.stack([np.ones(len(passes)), passes.tokens * slope], axis=1)
    return Affine(*map(float, least_squares.linear(columns, passes.seconds, weights)))


def fit_drafting(passes: Passes, age_weights: Array) -> Drafting:
    """As fit_affine. While nearly all passes carry drafts, `drafting` cannot be told from `base`: a few made-up passes
    say that it is SHARE of it."""
    passes, weights = relative_weights(passes, age_weights)
    drafted = passes.tokens - passes.live
    columns = np.stack([np.ones(len(passes)), passes.live, drafted > 0, drafted], axis=1).astype(np.float64)
    columns = np.concatenate([columns, [[SHARE, 0, -1, 0]]])
    seconds = np.append(passes.seconds, 0.0)
    made_up = MADE_UP / (1 + np.count_nonzero(drafted == 0)) * weights.mean()
    return Drafting(*map(float, least_squares.linear(columns, seconds, np.append(weights, made_up))))


def fit_two_segment(passes: Passes, age_weights: Array) -> TwoSegment:
    """The knot whose two lines leave the least; each line sees 2 sizes or more. Knots are tried among the quantiles of
    the sizes seen, then among those of the sizes around the best."""
    passes, weights = relative_weights(passes, age_weights)
    whole = _line(passes, weights)
    best, least = TwoSegment(whole, whole, float(passes.tokens.max())), _left(whole, passes, weights)
    sizes = np.unique(passes.tokens)
    for _ in range(2):
        knots = np.unique(np.quantile(sizes, np.linspace(0, 1, KNOTS), method="lower"))
        for knot in knots:
            low = passes.tokens <= knot
            if min(len(np.unique(passes.tokens[side])) for side in (low, ~low)) < 2:
                continue
            tried = TwoSegment(_line(passes[low], weights[low]), _line(passes[~low], weights[~low]), float(knot))
            left = _left(tried, passes, weights)
            if left < least:
                best, least = tried, left
        at = int(np.searchsorted(knots, best.knot))
        around = knots[max(0, at - 1)], knots[min(len(knots) - 1, at + 1)]
        sizes = sizes[(sizes >= around[0]) & (sizes <= around[1])]
    return best


def fit_roofline(passes: Passes, age_weights: Array) -> Roofline:
    """Sort passes into memory-bound and compute-bound, solve, sort again; from several first guesses of the ridge, the
    tokens at which a pass turns compute-bound. The best over all rounds is kept: the rounds need not descend."""
    passes, weights = relative_weights(passes, age_weights)
    ones, none = np.ones(len(passes)), np.zeros(len(passes))
    best, least = Roofline(0.0, 0.0, 0.0, 0.0), np.inf
    for share in (0.25, 0.5, 0.75, 1.0):
        bound = passes.tokens > np.quantile(passes.tokens, share)
        for _ in range(ROUNDS):
            columns = np.stack([np.where(bound, none, column) for column in (ones, passes.context)], axis=1)
            columns = np.column_stack([columns, np.where(bound, passes.tokens, none), passes.live])
            tried = Roofline(*map(float, least_squares.linear(columns, passes.seconds, weights)))
            left = _left(tried, passes, weights)
            if left < least:
                best, least = tried, left
            sorted_again = tried.compute * passes.tokens > tried.memory + tried.kv * passes.context
            if (sorted_again == bound).all():
                break
            bound = sorted_again
    return best


def _left(form: Form, passes: Passes, weights: Array) -> float:
    return float(weights @ np.square(form.predict(passes.live, passes.tokens, passes.context) - passes.seconds))


def relative_error(form: Form, passes: Passes) -> float:
    """Mean absolute error of the predicted times, relative to the measured ones."""
    predicted = form.predict(passes.live, passes.tokens, passes.context)
    return float(np.mean(np.abs(predicted / passes.seconds - 1)))


FITS: dict[str, Callable[[Passes, Array], Form]] = {
    "affine": fit_affine,
    "drafting": fit_drafting,
    "two_segment": fit_two_segment,
    "roofline": fit_roofline,
}
