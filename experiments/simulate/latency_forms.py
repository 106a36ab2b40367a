"""Drafting, a formula (form) for the time of a target pass, and its fit to timed passes.

    t = base + row b + (drafting + token d if d > 0)            paper Eq 1 with separate costs of drafts

b: live requests, d: drafted tokens. Times are in seconds.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from das.budget.latency import Array


@dataclass(frozen=True)
class Passes:
    """The counts and times of target passes, as arrays of equal length."""

    live: Array  # requests
    tokens: Array  # live requests + drafted tokens
    context: Array  # tokens attended to
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, chosen: NDArray[np.bool_] | slice) -> "Passes":
        return Passes(self.live[chosen], self.tokens[chosen], self.context[chosen], self.seconds[chosen])


@dataclass(frozen=True)
class Drafting:
    """A form in which drafts add a fixed cost per pass (drafter, other kernels, bookkeeping) and a cost per drafted
    token."""

    base: float  # seconds per pass
    row: float  # seconds per live request
    drafting: float  # seconds per pass with drafts
    token: float  # seconds per drafted token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        num_drafted = tokens - live
        return self.base + self.row * live + np.where(num_drafted > 0, self.drafting + self.token * num_drafted, 0.0)


OUTLIER = 3.0  # a pass this many times slower than the typical line was interrupted
SHARE = 0.2  # assumed value of drafting / base, until passes show the real one
MADE_UP = 8.0  # weight of the synthetic passes that state SHARE while all timed passes carry drafts


def linear(columns_N_p: Array, seconds_N: Array, weights_N: Array) -> Array:
    """Fit seconds_N = columns_N_p @ coefficients by weighted least squares. Returns the coefficients [p]; one that
    would be negative is set to 0."""
    root = np.sqrt(weights_N)
    columns, seconds = columns_N_p * root[:, None], seconds_N * root
    size = np.sqrt(np.einsum("np,np->p", columns, columns))
    used = np.flatnonzero(size)  # indices of the columns that are in the fit
    coefficients = np.zeros(columns.shape[1])
    while len(used):
        solution = np.linalg.lstsq(columns[:, used] / size[used], seconds, rcond=None)[0]
        if (solution >= 0).all():
            coefficients[used] = solution / size[used]
            break
        used = np.delete(used, int(solution.argmin()))
    return coefficients


def relative_weights(passes: Passes) -> tuple[Passes, Array]:
    """Returns the passes without the interrupted ones, and weights with which least squares minimises relative errors.

    An interrupted pass lies far above the typical line. The typical line minimises absolute relative errors, so it does
    not move even if half of the passes were interrupted.
    """
    columns = np.stack([np.ones(len(passes)), passes.tokens], axis=1)
    weights = 1 / np.square(passes.seconds)
    line = columns @ linear(columns, passes.seconds, weights)
    for _ in range(5):
        errors = np.maximum(np.abs(line / passes.seconds - 1), 1e-3)
        line = columns @ linear(columns, passes.seconds, weights / errors)
    undisturbed = passes.seconds <= OUTLIER * line
    return passes[undisturbed], (1 / np.square(line))[undisturbed]


def fit_drafting(passes: Passes) -> Drafting:
    """Fit the form `Drafting` by least squares of relative errors, without interrupted passes.

    While nearly all passes carry drafts, the fit cannot separate `drafting` from `base`. Then the fit adds a few
    synthetic passes in which `drafting` is SHARE of `base`.
    """
    passes, weights = relative_weights(passes)
    num_drafted = passes.tokens - passes.live
    columns = np.stack([np.ones(len(passes)), passes.live, num_drafted > 0, num_drafted], axis=1).astype(np.float64)
    columns = np.concatenate([columns, [[SHARE, 0, -1, 0]]])
    seconds = np.append(passes.seconds, 0.0)
    made_up = MADE_UP / (1 + np.count_nonzero(num_drafted == 0)) * weights.mean()
    return Drafting(*map(float, linear(columns, seconds, np.append(weights, made_up))))
