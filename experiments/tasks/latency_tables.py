"""task=latency_tables: write the derived latency tables of the repository (experiments/recorded/latency_tables).

They are computed from data sheets and model shapes by a roofline (das/replay/hardware.py, with sources). Nobody
measured them: a latency.json of task=calibrate or task=calibrate_torch takes their place (task.latency=PATH).

task.measured=FOLDER takes the times that a run of task=check_gpu measured there. They are kept beside the derived ones,
with device, date and commit, and go before them wherever a table is read.
"""

import json
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from das.replay.hardware import GPUS, MODELS, derived
from experiments.recorded.latency_files import DIGITS, TABLES, keep_measured, table_path, write_latency
from experiments.run.errors import UserError
from experiments.run.progress import Progress

SHAPES = {"7b": "7B", "8b": "8B"}  # of task=check_gpu's parts pass_times_*: the model whose table they measure


def rows_of(gpu: str, model: str, task: DictConfig) -> list[list[float]]:
    """Rows of live, tokens, context, seconds: one for every combination of task.live, task.drafts and task.contexts.

    Drafts and contexts of the settings are per request; the rows hold sums over all live requests.
    """
    b, d, x = (np.array(axis, float) for axis in (task.live, task.drafts, task.contexts))
    if not (len(b) and len(d) and len(x)) or b.min() < 1 or d.min() < 0 or x.min() < 0:
        raise UserError("task.live must be 1 or more, task.drafts and task.contexts 0 or more, and none empty")
    live, drafts, context = (axis.ravel() for axis in np.meshgrid(b, d, x, indexing="ij"))
    tokens = live * (1 + drafts)
    seconds = derived(gpu, model).predict(live, tokens, live * context)
    rows = zip(live.tolist(), tokens.tolist(), (live * context).tolist(), seconds.tolist(), strict=True)
    return [[int(n), int(t), int(c), float(f"{s:.{DIGITS}g}")] for n, t, c, s in rows]


def take_measured(run_folder: Path, tables: Path, progress: Progress) -> None:
    """Keep the tables that a run of task=check_gpu measured. Raises UserError where it measured none."""
    name = f"task.measured={run_folder}"
    try:
        result = json.loads((run_folder / "result.json").read_text(encoding="utf-8"))
        facts = {key: result[key] for key in ("device", "date", "commit")}
        parts, on_gpu = result["parts"], result["gpu"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{name}: it holds no result of task=check_gpu") from None
    gpu = next((gpu for gpu in GPUS if gpu in facts["device"]), None)
    if not on_gpu or gpu is None:
        raise UserError(f"{name}: it ran on {facts['device']}; tables are kept for {', '.join(GPUS)}")
    taken = [shape for shape in SHAPES if parts.get(f"pass_times_{shape}", {}).get("ok")]
    if not taken:
        raise UserError(f"{name}: it measured no times: its parts pass_times_7b and pass_times_8b did not pass")
    for shape in taken:
        path = table_path(gpu, SHAPES[shape], tables, measured=True)
        keep_measured(run_folder / "parts" / f"pass_times_{shape}" / "calibrate" / "latency.json", path, facts)
        progress.note(f"{path.name:<16s} measured on {facts['device']}, {facts['date']}, commit {facts['commit']}")


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Write a file for every GPU and model size, and print a line for each."""
    progress = Progress(0)
    tables = TABLES if config.task.tables is None else Path(config.task.tables)
    tables.mkdir(parents=True, exist_ok=True)
    if config.task.measured is not None:
        take_measured(Path(config.task.measured), tables, progress)
        return
    for gpu in GPUS:
        for model in MODELS:
            gpus = derived(gpu, model).gpus
            path = table_path(gpu, model, tables)
            source = f"{model} on {gpus} x {gpu}, roofline of data sheets (das/replay/hardware.py)"
            forms = write_latency(path, rows_of(gpu, model, config.task), source, derived=True)
            errors = ", ".join(f"{name} {form['error']:.1%}" for name, form in forms.items())
            progress.note(f"{path.name:<16s} {source}; errors of the forms: {errors}")
