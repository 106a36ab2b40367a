"""latency.json: times of decode passes, measured by task=calibrate or task=calibrate_torch, or derived by
task=latency_tables.

columns  live (requests), tokens (live + drafted), context (tokens of all requests together), seconds
passes   rows of these columns
forms    NAME.{coefficients, error}: the forms of das.budget.latency_forms fitted to the passes, for budget.latency
source   one line that says where the times are from
derived  true if nobody measured them
A measured table that the repository ships (latency_tables/measured) has device, date and commit of its run, too.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from das.budget.latency_forms import FITS, Form, Passes, relative_error
from das.replay.times import Grid, Table
from experiments.run.errors import UserError
from experiments.run.run_folder import write_text

TABLES = Path(__file__).parent / "latency_tables"
MEASURED = "measured"  # folder in it of tables that take the place of derived ones
DIGITS = 5  # significant digits of what a derived table holds, so that every machine writes the same file
DERIVED = "derived, not measured"  # the source of a table that nobody measured ends so
COLUMNS = ["live", "tokens", "context", "seconds"]


def fitted_forms(rows: list[list[float]]) -> dict[str, Any]:
    """Each form's coefficients, and its mean absolute relative error on passes that it was not fitted to."""
    passes = Passes(*np.array(rows, float).T)
    fitted = np.random.default_rng(0).permutation(len(passes)) % 2 == 0
    forms: dict[str, Any] = {}
    for name, fit in FITS.items():
        error = relative_error(fit(passes[fitted], np.ones(fitted.sum())), passes[~fitted])
        form = fit(passes, np.ones(len(passes)))
        forms[name] = {"coefficients": json.loads(json.dumps(form, default=vars)), "error": error}
    return forms


def write_latency(path: Path, rows: list[list[float]], source: str, derived: bool) -> dict[str, Any]:
    """Write latency.json and return its forms. Those of derived times are rounded."""
    forms = rounded(fitted_forms(rows)) if derived else fitted_forms(rows)
    head = {"source": source, "derived": derived, "columns": COLUMNS, "forms": forms}
    body = ",\n".join(json.dumps(row) for row in rows)
    write_text(path, json.dumps(head)[:-1] + ', "passes": [\n' + body + "\n]}\n")
    return forms


def rounded(value: Any) -> Any:
    """A value of JSON with DIGITS significant digits in all fractions."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def keep_measured(latency: Path, path: Path, facts: dict[str, Any]) -> None:
    """Copy a measured latency.json to `path` with more facts: device, date, commit.

    Raises UserError for another file.
    """
    read_latency(latency)
    content = json.loads(latency.read_text(encoding="utf-8"))
    rows = content.pop("passes")
    body = ",\n".join(json.dumps(row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**facts, **content})[:-1] + ', "passes": [\n' + body + "\n]}\n")


def read_latency(path: Path) -> tuple[Form, str]:
    """The times of a latency.json as a grid (the median where a pass was repeated), and their source in words.

    Raises UserError for any other file.
    """
    name = f"task.latency={path}"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        source = f"{content['source']}, {DERIVED if content['derived'] else 'measured'}"
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
    """The grid of rows [passes, 4] (COLUMNS), interpolated by live requests, drafts and context per request.

    Context is an axis only if every combination of live requests and drafts was timed at the same few contexts.
    Contexts that grew from pass to pass are ignored. Raises ValueError if a combination is missing.
    """
    live, drafts, context = rows[:, 0], rows[:, 1] / rows[:, 0] - 1, np.round(rows[:, 2] / rows[:, 0], 6)
    cells: dict[tuple[float, float, float], list[float]] = {}
    for key in zip(live.tolist(), np.round(drafts, 6).tolist(), context.tolist(), rows[:, 3].tolist(), strict=True):
        cells.setdefault(key[:3], []).append(key[3])
    axes = [np.array(sorted({key[axis] for key in cells})) for axis in range(3)]
    if len(cells) != np.prod([len(axis) for axis in axes]):  # contexts grew while passes were timed
        without_context: dict[tuple[float, float, float], list[float]] = {}
        for (b, d, _), seconds in cells.items():
            without_context.setdefault((b, d, 0.0), []).extend(seconds)
        cells, axes = without_context, [axes[0], axes[1], np.zeros(1)]
    shape = tuple(len(axis) for axis in axes)
    if len(cells) != np.prod(shape):
        raise ValueError("not every number of live requests was timed with every number of drafts")
    medians = np.array([[[np.median(cells[b, d, c]) for c in axes[2]] for d in axes[1]] for b in axes[0]])
    return Grid(axes[0], axes[1], axes[2], medians)


def table_path(gpu: str, model: str, tables: Path = TABLES, measured: bool = False) -> Path:
    """File of the derived or the measured table of a GPU and a model size."""
    return (tables / MEASURED if measured else tables) / f"{gpu}_{model}.json"


def chosen_form(latency: str | None, gpu: str, model: str) -> tuple[Form, str]:
    """The times of `latency`, a latency.json, or of the shipped table of the GPU and model size; and their source.
    A measured table goes before the derived one.

    Raises UserError for a GPU or a model size without a table.
    """
    if latency is not None:
        return read_latency(Path(latency))
    shipped = sorted(path.stem.split("_") for path in TABLES.glob("*.json"))
    for part, (what, name) in enumerate((("GPU", gpu), ("model size", model))):
        known = sorted({stem[part] for stem in shipped})
        if name not in known:
            raise UserError(
                f"unknown {what} {name!r}: choose one of {', '.join(known)}, or give task.latency=PATH (measured)"
            )
    measured = table_path(gpu, model, measured=True)
    return read_latency(measured if measured.exists() else table_path(gpu, model))


def step_table(pairs: Any) -> Table:
    """Time of a pass by its tokens, from task.step_ms: [[tokens, milliseconds], ...]. Raises UserError for others."""
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise UserError("task.step_ms=[[tokens, milliseconds], ...]: pairs of two numbers are needed")
    try:
        points = [(float(tokens), float(ms)) for tokens, ms in pairs]
        return Table(tuple(tokens for tokens, _ in points), tuple(ms / 1e3 for _, ms in points))
    except (ValueError, TypeError) as error:
        raise UserError(f"task.step_ms=[[tokens, milliseconds], ...]: {error}") from error
