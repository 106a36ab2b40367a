"""Times of decode passes: formulas (forms), their fits to timed passes, and the file of task=calibrate.

Affine (times.py) has a time for each pass and one for each token (paper Eq 1). Drafting has separate costs of drafts:

    t = base + row b + (drafting + token d if d > 0)

b: live requests, d: drafted tokens. Times are in seconds. A latency.json holds:
columns  live (requests), tokens (live + drafted), context (tokens of all requests together), seconds
passes   rows of these columns
forms    NAME.{coefficients, error}: the forms, fitted to the passes
source   one line that names the source of the times
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from das.budget.latency import Array
from das.general.files import write_text
from experiments.run.errors import UserError
from experiments.simulate.gpu_times import gpu_times
from experiments.simulate.times import Affine, Form, Grid, PassTimes, Table, Times


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


# ---- fits ----

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


# ---- latency.json, and other sources of times ----

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


@dataclass(frozen=True)
class ChosenTimes:
    """Times of passes, and their source in words. stock: those of vLLM as it comes; None: unknown."""

    das: PassTimes
    stock: PassTimes | None
    source: str


def chosen_times(latency: str | None, gpu: str, model: str, drafting: float) -> ChosenTimes:
    """Return the times of decode passes.

    latency: path of a latency.json, whose measured times are used. None: compute the times of the GPU and model size.
    drafting: beside measured times, the seconds of drafting for each request.
    Raises UserError for an unknown GPU or model size, or for a file that is no latency.json.
    """
    if latency is not None:
        form, source = read_latency(Path(latency))
        return ChosenTimes(Times(form, draft_request=drafting), None, source)
    times = gpu_times(gpu, model)
    source = f"{model} on {times.gpus} x {gpu} by physics (experiments/simulate/gpu_times.py), derived, not measured"
    return ChosenTimes(times, replace(times, das=False), source)


def step_table(pairs: Sequence[Sequence[float]]) -> Table:
    """Make a table of pass times by number of tokens. pairs: the setting task.step_ms, [[tokens, milliseconds], ...].
    Raises UserError for anything else."""
    try:
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("pairs of two numbers are needed")
        return Table(tuple(tokens for tokens, _ in pairs), tuple(ms / 1e3 for _, ms in pairs))
    except ValueError as error:
        raise UserError(f"task.step_ms=[[tokens, milliseconds], ...]: {error}") from error
