"""Times of decode passes: measured times from a latency.json of task=calibrate, or those of a GPU by physics.

A latency.json holds:
columns  live (requests), tokens (live + drafted), context (tokens of all requests together), seconds
passes   rows of these columns
forms    NAME.{coefficients, error}: the forms of latency_fits.py, fitted to the passes
source   one line that names the source of the times
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from das.general.files import write_text
from experiments.run.errors import UserError
from experiments.simulate.gpu_times import gpu_times
from experiments.simulate.latency_fits import FITS, relative_error
from experiments.simulate.latency_forms import Passes
from experiments.simulate.tables import Grid, Table
from experiments.simulate.times import Form, PassTimes, Times

COLUMNS = ["live", "tokens", "context", "seconds"]
DERIVED = "derived, not measured"  # the source of computed times ends with these words


def fitted_forms(rows: list[list[float]]) -> dict[str, Any]:
    """Fit all forms. Returns name -> coefficients and error.

    The error is the mean absolute relative error on one half of the passes, after a fit to the other half.
    """
    passes = Passes(*np.array(rows, float).T)
    fitted = np.random.default_rng(0).permutation(len(passes)) % 2 == 0
    forms: dict[str, Any] = {}
    for name, fit in FITS.items():
        error = relative_error(fit(passes[fitted]), passes[~fitted])
        form = fit(passes)
        forms[name] = {"coefficients": json.loads(json.dumps(form, default=vars)), "error": error}
    return forms


def write_latency(path: Path, rows: list[list[float]], source: str) -> dict[str, Any]:
    """Write latency.json. Returns the fitted forms that it holds."""
    forms = fitted_forms(rows)
    head = {"source": source, "columns": COLUMNS, "forms": forms}
    body = ",\n".join(json.dumps(row) for row in rows)
    write_text(path, json.dumps(head)[:-1] + ', "passes": [\n' + body + "\n]}\n")
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
    live, drafts, context = rows[:, 0], rows[:, 1] / rows[:, 0] - 1, np.round(rows[:, 2] / rows[:, 0], 6)
    cells: dict[tuple[float, float, float], list[float]] = {}
    for key in zip(live.tolist(), np.round(drafts, 6).tolist(), context.tolist(), rows[:, 3].tolist(), strict=True):
        cells.setdefault(key[:3], []).append(key[3])
    axes = [np.array(sorted({key[axis] for key in cells})) for axis in range(3)]
    if len(cells) != np.prod([len(axis) for axis in axes]):  # contexts grew from pass to pass
        without_context: dict[tuple[float, float, float], list[float]] = {}
        for (b, d, _), seconds in cells.items():
            without_context.setdefault((b, d, 0.0), []).extend(seconds)
        cells, axes = without_context, [axes[0], axes[1], np.zeros(1)]
    shape = tuple(len(axis) for axis in axes)
    if len(cells) != np.prod(shape):
        raise ValueError("not every number of live requests was timed with every number of drafts")
    medians = np.array([[[np.median(cells[b, d, c]) for c in axes[2]] for d in axes[1]] for b in axes[0]])
    return Grid(axes[0], axes[1], axes[2], medians)


@dataclass(frozen=True)
class ChosenTimes:
    """Times of passes, and their source in words. stock: those of vLLM as it comes; None: unknown."""

    das: PassTimes
    stock: PassTimes | None
    source: str

    @property
    def derived(self) -> bool:
        """Whether the times are computed, not measured."""
        return self.source.endswith(DERIVED)


def chosen_times(latency: str | None, gpu: str, model: str, drafting: float, prompt_token: float = 0.0) -> ChosenTimes:
    """Return the times of decode passes.

    latency: path of a latency.json, whose measured times are used. None: compute the times of the GPU and model size.
    drafting, prompt_token: beside measured times, the seconds of drafting for each request and of each prompt token.
    Raises UserError for an unknown GPU or model size, or for a file that is no latency.json.
    """
    if latency is not None:
        form, source = read_latency(Path(latency))
        return ChosenTimes(Times(form, prefill=prompt_token, draft_request=drafting), None, source)
    try:
        times = gpu_times(gpu, model)
    except ValueError as error:
        raise UserError(str(error)) from None
    source = f"{model} on {times.gpus} x {gpu} by physics (experiments/simulate/gpu_times.py), {DERIVED}"
    return ChosenTimes(times, replace(times, das=False), source)


def step_table(pairs: Any) -> Table:
    """Make a table of pass times by number of tokens. pairs: the setting task.step_ms, [[tokens, milliseconds], ...].
    Raises UserError for anything else."""
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise UserError("task.step_ms=[[tokens, milliseconds], ...]: pairs of two numbers are needed")
    try:
        points = [(float(tokens), float(ms)) for tokens, ms in pairs]
        return Table(tuple(tokens for tokens, _ in points), tuple(ms / 1e3 for _, ms in points))
    except (ValueError, TypeError) as error:
        raise UserError(f"task.step_ms=[[tokens, milliseconds], ...]: {error}") from error
