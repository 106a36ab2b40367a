"""task=replay: simulate the recorded rollouts of a run, and compare simulated with measured rollout times for each arm.

The latency model is fitted to the passes of every second step. The simulation is judged on the other steps.
With task.latency=PATH the latency model is read from a file instead of fitted.
result.json: latency, prefill_us; arms.NAME.{measured_s, predicted_s, error, step_error, tokens_per_pass,
tokens_per_pass_measured} of the judged steps; ordering: whether both times put the arms in the same order.
"""

from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.task_figures import validation_figure
from das.engine.methods import find_method
from experiments.harness.replays.recorded_arms import arm_config_of, can_be_replayed, replay_arm, tokens_only
from experiments.run.errors import UserError, reading
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.config import RunConfig
from experiments.simulate.cluster import Step
from experiments.simulate.fitted_times import fit_form, fit_prefill
from experiments.simulate.latency_files import read_latency
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.times import Times

FITTED, JUDGED = slice(0, None, 2), slice(1, None, 2)  # steps that the latency model is fitted to; steps that judge it


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Fit the latency model, simulate every arm, and compare the times. Prints a line for each arm."""
    task = config.task
    progress = Progress(0)
    arms = replayable(arm_folders(task.run), progress)
    measured_form = None if task.latency is None else read_latency(Path(task.latency))
    run_folder = RunFolder(Path(folder), config.resolved)
    timelines = {name: _timelines(path) for name, path in arms.items()}
    fitted = [timeline for of_arm in timelines.values() for timeline in of_arm[FITTED]]
    form, source = measured_form or (fit_form(fitted, str(task.form)), "fitted")
    works = {name: read_rollouts(path, prompt=int(task.prompt)) for name, path in arms.items()}
    prefill = fit_prefill(fitted, form, int(task.prompt))
    times = Times(form, prefill=prefill)
    latency = repr(form) if measured_form is None else f"{task.latency} ({source})"
    result: dict[str, Any] = {"latency": latency, "prefill_us": prefill * 1e6, "arms": {}}
    curves = {}
    for name, path in arms.items():
        config_of_arm = arm_config_of(path)
        if find_method(config_of_arm.arm.method).drafts and (line := tokens_only(works[name], config_of_arm.drafter)):
            progress.note(f"{name}: {line}")
        rows = _metrics(path, len(works[name]), len(timelines[name]))
        steps = replay_arm(works[name], times, config_of_arm)
        result["arms"][name] = judged(rows[JUDGED], steps[JUDGED])
        curves[name] = [row["rollout_s"] for row in rows[JUDGED]], [step.rollout_s for step in steps[JUDGED]]
        progress.note(
            f"{name:<14s}"
            + "measured {measured_s:.3f} s per step  replayed {predicted_s:.3f} s ({error:+.1%})  tokens/pass measured "
            "{tokens_per_pass_measured:.2f}  replayed {tokens_per_pass:.2f}".format(**result["arms"][name])
        )
    orders = [sorted(result["arms"], key=lambda n: result["arms"][n][k]) for k in ("measured_s", "predicted_s")]
    result["ordering"] = orders[0] == orders[1]
    progress.note(
        f"same order of arms: {'yes' if result['ordering'] else 'no'} ({', '.join(orders[0])}: fastest first)"
    )
    validation_figure(curves, Path(folder) / "replay.png")
    progress.note(f"result: {run_folder.write_result(result)}")


def judged(rows: list[dict[str, float]], steps: list[Step]) -> dict[str, float]:
    """Compare the measured steps with the simulated ones. rows: the measured metrics of each step. steps: the same
    steps, simulated.

    Returns means over steps; step_error is the mean of the absolute relative errors of single steps.
    """
    measured, predicted = [row["rollout_s"] for row in rows], [step.rollout_s for step in steps]
    return {
        "measured_s": float(np.mean(measured)),
        "predicted_s": float(np.mean(predicted)),
        "error": float(np.mean(predicted) / np.mean(measured) - 1),
        "step_error": float(np.mean(np.abs(np.array(predicted) / measured - 1))),
        "tokens_per_pass": sum(step.tokens for step in steps) / sum(step.passes for step in steps),
        "tokens_per_pass_measured": sum(row["tokens"] for row in rows) / sum(row["passes"] for row in rows),
    }


def arm_folders(path: str | None) -> dict[str, Path]:
    """Return name -> folder of the arms of a comparison, or of the only arm of another run.

    path: the folder of the run. Raises UserError if nothing was recorded there.
    """
    if path is None:
        raise UserError("task.run=FOLDER is missing: give the folder of a comparison, of task=rollout or of task=train")
    folder = Path(path)
    arms = {arm.name: arm for arm in sorted((folder / "arms").glob("*"))} if (folder / "arms").is_dir() else {}
    if not arms and (folder / "rollouts").is_dir():
        arms = {folder.name: folder}
    if not arms:
        raise UserError(f"{path} holds no run: neither arms/ nor rollouts/ is there")
    for arm in arms.values():
        if not list((arm / "rollouts").glob("*.timeline.json.gz")):
            raise UserError(f"{arm} holds no timelines: only rollouts that das recorded itself can be compared with")
    return arms


def replayable(arms: dict[str, Path], progress: Progress) -> dict[str, Path]:
    """Keep the arms that draft nothing or draft with das's own drafters and budgets. Prints a note for each other arm.

    Raises UserError if none remains.
    """
    known = {name: path for name, path in arms.items() if can_be_replayed(arm_config_of(path))}
    for name in arms.keys() - known.keys():
        progress.note(f"{name} is left out: only arms without drafts or with das, and no classes, can be replayed")
    if not known:
        raise UserError(f"arms {', '.join(arms)} cannot be replayed: only arms without drafts or with das can be")
    return known


def _metrics(path: Path, rollouts: int, timelines: int) -> list[dict[str, float]]:
    """Read rollout_s, tokens and passes of all steps. Raises UserError if a step lacks its rollout or timeline."""
    with reading(path / "metrics.jsonl"):
        rows = [{key: float(row[key]) for key in ("rollout_s", "tokens", "passes")} for row in read.metrics(path)]
    if not rollouts == timelines == len(rows):
        raise UserError(
            f"{path} has {len(rows)} steps of metrics, {rollouts} of rollouts and {timelines} of timelines: "
            "was it interrupted? Only a finished run can be replayed"
        )
    if len(rows) < 2:
        raise UserError(f"{path} has {len(rows)} step: two or more are needed, one to fit to and one to judge by")
    return rows


def _timelines(path: Path) -> list[dict[str, Any]]:
    steps = len(list((path / "rollouts").glob("*.timeline.json.gz")))
    return [_timeline(path, step) for step in range(1, steps + 1)]


def _timeline(path: Path, step: int) -> dict[str, Any]:
    """Read the timeline of a step. Raises UserError if times do not rise, or a pass has fewer tokens than requests."""
    with reading(path / "rollouts" / f"step_{step:05d}.timeline.json.gz"):
        timeline = read.timeline(path, step)
        seconds, live, tokens = (np.array(timeline[key], float) for key in ("step_time_s", "step_live", "step_tokens"))
        if not len(seconds) == len(live) == len(tokens) > 0:
            raise ValueError("step_time_s, step_live and step_tokens must be equally long")
        if not (seconds[-1] < np.inf and (np.diff(seconds, prepend=0.0) > 0).all() and (tokens >= live).all()):
            raise ValueError("times must rise, and no pass may have fewer tokens than requests")
        return timeline
