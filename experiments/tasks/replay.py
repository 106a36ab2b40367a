"""task=replay: replay the recorded rollouts of a run, and compare predicted with measured rollout times, arm by arm.

The latency model is fitted to the passes of every other step; the steps between are what the prediction is judged on.
With task.latency=PATH it is not fitted but read.
result.json: latency, prefill_us; arms.NAME.{measured_s, predicted_s, error, step_error, tokens_per_pass,
tokens_per_pass_measured}, of the judged steps; ordering: whether the arms come in the same order.
"""

from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from analysis import read
from analysis.replay_figure import validation_figure
from das.budget import make_budget
from das.budget.latency_forms import FITS, Form, Passes
from das.drafter import HistoryDrafter
from das.replay.cluster import Step, simulate_rollout
from das.replay.engine import Engine, PlainEngine
from das.replay.text_engine import TextEngine
from das.replay.times import Times
from das.replay.workload import Workload
from experiments.harness.setup import problems_per_step, schedule
from experiments.recorded.latency_files import read_latency
from experiments.recorded.rollouts import read_rollouts
from experiments.run.errors import UserError, reading
from experiments.run.plain import plain
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Fit, replay, compare; print a line an arm."""
    task = config.task
    if task.form not in FITS:
        raise UserError(f"task.form={task.form}: choose one of {', '.join(FITS)}")
    if int(task.prompt) < 0:
        raise UserError(f"task.prompt={task.prompt}: must not be negative")
    progress = Progress(0)
    arms = replayable(arm_folders(task.run), progress)
    given = None if task.latency is None else read_latency(Path(task.latency))
    run_folder = RunFolder(Path(folder), config)
    timelines = {name: _timelines(path) for name, path in arms.items()}
    lines = [line for lines in timelines.values() for line in lines[0::2]]
    form, source = given or (fit_form(lines, str(task.form)), "fitted")
    works = {name: read_rollouts(path, prompt=int(task.prompt)) for name, path in arms.items()}
    prefill = fit_prefill(lines, form, int(task.prompt))
    times = Times(form, prefill=prefill)
    latency = repr(form) if given is None else f"{task.latency} ({source})"
    result: dict[str, Any] = {"latency": latency, "prefill_us": prefill * 1e6, "arms": {}}
    curves = {}
    for name, path in arms.items():
        with reading(path / "metrics.jsonl"):
            whole = [{key: float(row[key]) for key in ("rollout_s", "tokens", "passes")} for row in read.metrics(path)]
        if not len(works[name]) == len(timelines[name]) == len(whole):
            raise UserError(
                f"{path} has {len(whole)} steps of metrics, {len(works[name])} of rollouts and {len(timelines[name])} "
                "of timelines: was it interrupted? A run that ended is needed"
            )
        if len(whole) < 2:
            raise UserError(f"{path} has {len(whole)} step: two or more are needed, to fit to one and judge the other")
        steps = replay_arm(works[name], times, _config(path))
        rows = whole[1::2]
        predicted = [step.rollout_s for step in steps[1::2]]
        measured = [row["rollout_s"] for row in rows]
        result["arms"][name] = {
            "measured_s": float(np.mean(measured)),
            "predicted_s": float(np.mean(predicted)),
            "error": float(np.mean(predicted) / np.mean(measured) - 1),
            "step_error": float(np.mean(np.abs(np.array(predicted) / measured - 1))),
            "tokens_per_pass": sum(s.tokens for s in steps[1::2]) / sum(s.passes for s in steps[1::2]),
            "tokens_per_pass_measured": sum(row["tokens"] for row in rows) / sum(row["passes"] for row in rows),
        }
        curves[name] = (measured, predicted)
        progress.note(
            f"{name:<14s}"
            + "measured {measured_s:.3f} s a step  replayed {predicted_s:.3f} s ({error:+.1%})  tokens/pass measured "
            "{tokens_per_pass_measured:.2f}  replayed {tokens_per_pass:.2f}".format(**result["arms"][name])
        )
    orders = [sorted(result["arms"], key=lambda n: result["arms"][n][k]) for k in ("measured_s", "predicted_s")]
    result["ordering"] = orders[0] == orders[1]
    progress.note(
        f"same order of arms: {'yes' if result['ordering'] else 'no'} ({', '.join(orders[0])}: fastest first)"
    )
    validation_figure(curves, Path(folder) / "replay.png")
    progress.note(f"result: {run_folder.write_result(result)}")


def arm_folders(path: str | None) -> dict[str, Path]:
    """Arms of a comparison, or the one arm of another run. UserError if nothing was recorded there."""
    if path is None:
        raise UserError("task.run=FOLDER is missing: the folder of a comparison or of task=rollout, task=train")
    folder = Path(path)
    found = {arm.name: arm for arm in sorted((folder / "arms").glob("*"))} if (folder / "arms").is_dir() else {}
    if not found and (folder / "rollouts").is_dir():
        found = {folder.name: folder}
    if not found:
        raise UserError(f"{path} holds no run: neither arms/ nor rollouts/ is there")
    for arm in found.values():
        if not list((arm / "rollouts").glob("*.timeline.json.gz")):
            raise UserError(f"{arm} holds no timelines: only rollouts of das itself can be checked against")
    return found


def _config(path: Path) -> DictConfig:
    with reading(path / "config.yaml"):
        config = OmegaConf.load(path / "config.yaml")
        if config.arm.method is None:  # raises where there is no arm
            raise ValueError("arm.method is empty")
        return config  # type: ignore[return-value]


def replayable(arms: dict[str, Path], progress: Progress) -> dict[str, Path]:
    """The arms that draft nothing or by das, a note for each other one. UserError if none is left."""
    known = {name: path for name, path in arms.items() if _config(path).arm.method in ("none", "das")}
    for name in arms.keys() - known.keys():
        progress.note(f"{name} is left out: replays know none and das")
    if not known:
        raise UserError(f"arms {', '.join(arms)} cannot be replayed: only those that draft nothing or by das can")
    return known


def fit_prefill(lines: list[dict[str, Any]], form: Form, prompt: int) -> float:
    """Seconds a prompt token: what each rollout's first pass took beyond what its live requests would."""
    first, live = (np.array([line[key][0] for line in lines], float) for key in ("step_time_s", "step_live"))
    beyond = float(np.mean(first - form.predict(live, live, live * prompt)))
    return max(0.0, beyond) / (float(live.mean()) * max(1, prompt))


def _timelines(path: Path) -> list[dict[str, Any]]:
    steps = len(list((path / "rollouts").glob("*.timeline.json.gz")))
    return [_timeline(path, step) for step in range(1, steps + 1)]


def _timeline(path: Path, step: int) -> dict[str, Any]:
    """read.timeline; UserError unless times rise and every pass has its requests and tokens."""
    with reading(path / "rollouts" / f"step_{step:05d}.timeline.json.gz"):
        line = read.timeline(path, step)
        seconds, live, tokens = (np.array(line[key], float) for key in ("step_time_s", "step_live", "step_tokens"))
        if not len(seconds) == len(live) == len(tokens) > 0:
            raise ValueError("step_time_s, step_live and step_tokens must be equally long")
        if not (seconds[-1] < np.inf and (np.diff(seconds, prepend=0.0) > 0).all() and (tokens >= live).all()):
            raise ValueError("times must rise and a pass has no fewer tokens than requests")
        return line


def fit_form(lines: list[dict[str, Any]], form: str) -> Form:
    """A latency form fitted to the passes of timelines, without each rollout's first, which computed the prompts."""
    seconds = np.concatenate([np.diff(line["step_time_s"]) for line in lines])
    live, tokens = (np.concatenate([line[k][1:] for line in lines]).astype(float) for k in ("step_live", "step_tokens"))
    if len(seconds) < 10:
        raise UserError(f"{len(seconds)} decode passes were recorded: too few for a latency model")
    passes = Passes(live, tokens, np.zeros(len(live)), seconds)
    return FITS[form](passes, np.ones(len(passes)))


def replay_arm(works: list[Workload], times: Times, config: DictConfig) -> list[Step]:
    """Replay the steps of an arm as its own config says."""
    slots = int(config.engine.max_num_seqs)
    engine: Engine
    match config.arm.method:
        case "none":
            engine = PlainEngine(times, slots)
        case "das":
            drafter = plain(config.drafter)
            del drafter["unit"]
            budget = make_budget(plain(config.arm.get("budget") or config.budget))
            engine = TextEngine(
                times, slots, HistoryDrafter(**drafter), budget, int(config.trainer.max_completion_length)
            )
        case other:
            raise ValueError(f"arm {config.arm.name} drafts by {other}")
    unit = max(1, config.data.problems // problems_per_step(config)) if config.drafter.unit == "epoch" else 1
    order = schedule(config) if "schedule" in config else None  # runs older than the setting sent them as given
    steps = []
    for i, work in enumerate(works):
        sent = list(range(len(work))) if order is None else order.order(work.problems)
        steps.append(simulate_rollout(work, [engine], [sent], (i + 1) // unit))
        if order is not None:
            order.observe(work.problems, work.lengths.tolist())
    return steps
