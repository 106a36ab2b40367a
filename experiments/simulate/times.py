"""The seconds of a simulated pass. `Times` takes them from a formula (a form) or from measured passes (Table, Grid);
gpu_times.py computes those of GPUs. Here are also the fits of forms to timed passes, and the file of task=calibrate.

Affine has a time for each pass and one for each token (paper Eq 1). Drafting has separate costs of drafts:

    t = base + row b + (drafting + token d if d > 0)

b: live requests, d: drafted tokens. Times are in seconds. A latency.json holds:
columns  live (requests), tokens (live + drafted), context (tokens of all requests together), seconds
passes   rows of these columns
forms    NAME.{coefficients, error}: the forms, fitted to the passes
source   one line that names the source of the times
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from das.budget.latency import Array
from das.general.files import write_text
from experiments.run.errors import UserError


@dataclass(frozen=True, slots=True)
class PassWork:
    """What a pass does.

    live: requests. drafted: drafted tokens that it verifies, placeholders included. context: tokens of prompt and
    response of all requests together. emitted: tokens. asked: requests that were asked for these drafts. joined:
    requests that are new in the pass. prompt: tokens of their prompts; new_prompt: of those that no sibling brought
    before, so that they are not in the prefix cache.
    """

    live: int
    drafted: int
    context: int
    emitted: int
    asked: int = 0
    joined: int = 0
    prompt: int = 0
    new_prompt: int = 0

    def undrafted(self) -> "PassWork":
        """Returns the same pass without drafts."""
        return replace(self, drafted=0, emitted=self.live, asked=0)


class PassTimes(Protocol):
    """How long passes take."""

    def seconds(self, work: PassWork) -> float:
        """Returns the seconds of a pass, from the end of the pass before to its own."""

    def plain(self, live: int, context: int, passes: int) -> Array:
        """Returns the seconds of each of `passes` passes in a row, without drafts and prompts.

        context: tokens of context of all requests in the first pass. It grows by one token per request and pass.
        """


class Form(Protocol):
    """A formula for the time of target passes."""

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        """Returns the predicted seconds of passes. live: their requests. tokens: live + drafted. context: prompt and
        response tokens of the requests. The arguments may broadcast."""


@dataclass(frozen=True)
class Affine:
    """A form with a fixed time for each pass and a time for each token (paper Eq 1)."""

    c_base: float  # seconds per pass
    c_tok: float  # seconds per token

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        return self.c_base + self.c_tok * tokens


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


@dataclass(frozen=True)
class Times:
    """Times of passes by a form, and what a pass takes beside it. In seconds."""

    form: Form  # the time of a target pass
    prefill: float = 0.0  # for each prompt token
    draft_request: float = 0.0  # for each request that is asked for a draft

    def seconds(self, work: PassWork) -> float:
        b, n, x = (np.array(value, np.float64) for value in (work.live, work.live + work.drafted, work.context))
        return float(self.form.predict(b, n, x)) + self.prefill * work.prompt + self.draft_request * work.asked

    def plain(self, live: int, context: int, passes: int) -> Array:
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        return self.form.predict(b, b, contexts)


@dataclass(frozen=True)
class Priced:
    """Times in which what drafts add to a pass is dearer or cheaper by the factor `price`. This shows how much a result
    depends on errors of the times."""

    times: PassTimes
    price: float

    def seconds(self, work: PassWork) -> float:
        plain = self.times.seconds(work.undrafted())
        return plain + self.price * (self.times.seconds(work) - plain)

    def plain(self, live: int, context: int, passes: int) -> Array:
        return self.times.plain(live, context, passes)


@dataclass(frozen=True)
class Scaled:
    """Times in which each simulated request stands for `requests` equal ones, so that a few recorded responses make a
    large batch."""

    times: PassTimes
    requests: float

    def seconds(self, work: PassWork) -> float:
        counts = {field.name: round(self.requests * getattr(work, field.name)) for field in fields(work)}
        return self.times.seconds(PassWork(**counts))

    def plain(self, live: int, context: int, passes: int) -> Array:
        return self.times.plain(round(self.requests * live), round(self.requests * context), passes)


# ---- measured passes ----


@dataclass(frozen=True)
class Table:
    """Measured times of passes by their number of tokens. Linear between the points; the last two are extrapolated."""

    tokens: tuple[float, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.seconds) or len(self.tokens) < 2:
            raise ValueError("a latency table needs two points or more, with tokens and seconds for each")
        if min(np.diff(self.tokens)) <= 0:
            raise ValueError("a latency table's tokens must rise from point to point")
        if min(self.seconds) <= 0:
            raise ValueError(f"times must be positive, got {min(self.seconds)}")
        for fewer, more in zip(self.seconds, self.seconds[1:], strict=False):
            if more < fewer:  # beyond the last point, times would become negative
                raise ValueError(f"times must not fall as tokens rise, got {fewer:.4g} s, then {more:.4g} s")

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        slope = (self.seconds[-1] - self.seconds[-2]) / (self.tokens[-1] - self.tokens[-2])
        beyond = np.maximum(np.asarray(tokens) - self.tokens[-1], 0.0) * slope
        return np.interp(tokens, self.tokens, self.seconds) + beyond


@dataclass(frozen=True)
class Grid:
    """Measured times of passes at every combination of three axes. Linear between the points and beyond the last."""

    live: Array  # requests
    drafts: Array  # drafted tokens per request
    context: Array  # tokens of context per request
    seconds_L_D_C: Array

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        live, tokens, context = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (live, tokens, context)))
        ways = (
            _between(self.live, live),
            _between(self.drafts, (tokens - live) / live),
            _between(self.context, context / live),
        )
        total = np.zeros(live.shape)
        for i, at_live in ways[0]:
            for j, at_drafts in ways[1]:
                for k, at_context in ways[2]:
                    total = total + at_live * at_drafts * at_context * self.seconds_L_D_C[i, j, k]
        return np.maximum(total, float(self.seconds_L_D_C.min()))


def _between(points: Array, values: Array) -> list[tuple[np.ndarray, Array]]:
    """Return what linear interpolation at `values` needs: two pairs (indices of neighbouring points, their weights).

    Beyond the outermost points a weight is negative. If there is only one point, its weight is 1.
    """
    if len(points) == 1:
        return [(np.zeros(values.shape, np.int64), np.ones(values.shape))]
    low = np.clip(np.searchsorted(points, values, side="right") - 1, 0, len(points) - 2)
    fraction = (values - points[low]) / (points[low + 1] - points[low])
    return [(low, 1 - fraction), (low + 1, fraction)]


# ---- fits ----


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


def fit_affine(passes: Passes) -> Affine:
    """Fit by least squares of relative errors, without interrupted passes. If all passes have the same number of
    tokens, c_tok cannot be known and is 0."""
    passes, weights = relative_weights(passes)
    slope = np.ptp(passes.tokens) > 0
    columns = np.stack([np.ones(len(passes)), passes.tokens * slope], axis=1)
    return Affine(*map(float, linear(columns, passes.seconds, weights)))


def relative_error(form: Form, passes: Passes) -> float:
    """Return the mean absolute error of the predicted times, relative to the measured times."""
    predicted = form.predict(passes.live, passes.tokens, passes.context)
    return float(np.mean(np.abs(predicted / passes.seconds - 1)))


FITS: dict[str, Callable[[Passes], Form]] = {"affine": fit_affine, "drafting": fit_drafting}


# ---- latency.json ----

COLUMNS = ["live", "tokens", "context", "seconds"]


def write_latency(path: Path, rows: list[list[float]], source: str) -> dict[str, Any]:
    """Write latency.json. Returns the fitted forms that it holds: name -> coefficients and error.

    The error is the mean absolute relative error on one half of the passes, after a fit to the other half.
    """
    passes = Passes(*np.array(rows, float).T)
    fitted = np.random.default_rng(0).permutation(len(passes)) % 2 == 0
    forms: dict[str, Any] = {}
    for name, fit in FITS.items():
        error = relative_error(fit(passes[fitted]), passes[~fitted])
        forms[name] = {"coefficients": vars(fit(passes)), "error": error}
    write_text(path, json.dumps({"source": source, "columns": COLUMNS, "forms": forms, "passes": rows}))
    return forms


def read_latency(path: Path) -> tuple[Form, str]:
    """Read a latency.json. Returns its times as a grid, and their source in words.

    If a pass was repeated, the grid has its median time. Raises UserError if the file is no latency.json.
    """
    name = f"task.latency={path}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        source = f"{content['source']}, measured"
        rows = np.array(content["passes"], np.float64)
        if list(content["columns"]) != COLUMNS or rows.ndim != 2 or rows.shape[1] != len(COLUMNS) or not len(rows):
            raise ValueError(f"columns must be {', '.join(COLUMNS)}")
        if not (np.isfinite(rows).all() and (rows[:, 0] >= 1).all() and (rows[:, 1] >= rows[:, 0]).all()):
            raise ValueError("live must be at least 1 and tokens at least live")
        if not ((rows[:, 3] > 0).all() and (rows[:, 2] >= 0).all()):
            raise ValueError("seconds must be positive and context not negative")
        return grid(rows), source
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else error
        raise UserError(f"{name} is no latency.json of task=calibrate: {reason}") from None


def grid(rows: np.ndarray) -> Grid:
    """Make a grid from timed passes. Its axes are live requests, drafted tokens and context per request.

    rows: [passes, 4], as in COLUMNS. Context is an axis only if all combinations of live requests and drafts were timed
    at the same contexts; otherwise contexts are ignored. Raises ValueError if a combination is missing.
    """
    live, tokens, context, seconds = rows.T
    keys = np.stack([live, np.round(tokens / live - 1, 6), np.round(context / live, 6)])
    for _ in range(2):
        medians = pd.Series(seconds).groupby(list(keys)).median()
        axes = [np.unique(key) for key in keys]
        if len(medians) == np.prod([len(axis) for axis in axes]):
            return Grid(axes[0], axes[1], axes[2], medians.to_numpy().reshape([len(axis) for axis in axes]))
        keys[2] = 0.0  # contexts grew from pass to pass
    raise ValueError("not every number of live requests was timed with every number of drafts")
