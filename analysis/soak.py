"""Find out from the measurements of task=soak whether something grows, such as memory: compute slopes and draw a
figure."""

from pathlib import Path
from typing import Any

import numpy as np

from analysis import read
from analysis.figures import figure

BINS = 100  # samples are reduced to this number of medians, because slopes between all pairs would take long


def growth(minutes: np.ndarray, steps: np.ndarray, values: np.ndarray) -> dict[str, float]:
    """Return the median of `values`, and their growth in % of the median per hour and per 1000 steps.

    minutes, steps: [samples], the time and the training step of each value. Growth is the Theil-Sen slope over the
    medians of BINS consecutive groups.
    """
    groups = [group for group in np.array_split(np.arange(len(values)), BINS) if len(group)]
    levels = np.array([np.median(values[group]) for group in groups])
    first, second = np.triu_indices(len(levels), 1)
    median = float(np.median(values))
    result = {"median": median}
    for name, clock, unit in (("percent_per_hour", minutes, 60.0), ("percent_per_1000_steps", steps, 1000.0)):
        times = np.array([clock[group].mean() for group in groups])
        slope = np.median((levels[second] - levels[first]) / (times[second] - times[first]))
        result[name] = float(slope * unit / median * 100) if median else 0.0
    return result


def series(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return named series over steps: totals, memory by role of a process, and CPU time per step.

    The CPU time of the first step is unknown, so the CPU time of the second step is used for both.
    """
    cpu = np.diff([row["cpu_s"] for row in rows])
    named = {
        "resident_mib": np.array([sum(row["resident_mib"].values()) for row in rows]),
        "anonymous_mib": np.array([sum(row["anonymous_mib"].values()) for row in rows]),
        **{key: np.array([row[key] for row in rows], float) for key in ("step_s", "files", "processes", "tokens")},
        "history_tokens": np.array([row["history_tokens"] for row in rows], float),
        "step_cpu_s": np.concatenate([cpu[:1], cpu]),
    }
    named["cpu_ms_per_token"] = named["step_cpu_s"] * 1e3 / named["tokens"]
    for role in sorted({role for row in rows for role in row["anonymous_mib"]}):
        for kind in ("resident_mib", "anonymous_mib"):
            named[f"{kind}.{role}"] = np.array([row[kind].get(role, 0.0) for row in rows])
    return named


def evaluate(folder: Path, warm_up_minutes: float) -> dict[str, Any]:
    """Return the growth of every series after the warm-up. Raises ValueError if fewer than three samples remain."""
    rows = read.lines(folder / "soak.jsonl")
    minutes, steps = (np.array([row[key] for row in rows], float) for key in ("minutes", "step"))
    is_warm = minutes >= warm_up_minutes
    if is_warm.sum() < 3:
        raise ValueError(f"{folder}: fewer than 3 steps after {warm_up_minutes} minutes of warm-up")
    return {
        "steps": len(rows),
        "minutes": float(minutes[-1]),
        "warm_up_minutes": warm_up_minutes,
        "growth": {
            name: growth(minutes[is_warm], steps[is_warm], values[is_warm]) for name, values in series(rows).items()
        },
    }


def summary_text(result: dict[str, Any]) -> str:
    """Return a summary in a few lines. result: the result of `evaluate`, with `leaked` (kind -> names) if known."""
    run, warm_up = f"{result['steps']} steps in {result['minutes']:.0f} min", result["warm_up_minutes"]
    lines = [f"{run}; median, and growth after the warm-up of {warm_up} min:"]
    lines += [
        f"  {name:40s} {each['median']:12.2f}  {each['percent_per_hour']:+8.3f} % per hour  "
        f"{each['percent_per_1000_steps']:+8.3f} % per 1000 steps"
        for name, each in result["growth"].items()
    ]
    leaked = result.get("leaked", {})
    return "\n".join([*lines, *(f"leaked {kind}: {', '.join(names) or 'none'}" for kind, names in leaked.items())])


def soak_figure(folder: Path, warm_up_minutes: float, path: Path) -> None:
    """Draw memory, step time, open files and history over time. A dashed line marks the end of the warm-up."""
    rows = read.lines(folder / "soak.jsonl")
    minutes, named = np.array([row["minutes"] for row in rows]), series(rows)
    with figure(path, 2, (11, 7.5), rows=2) as ((memory, roles), (steps, rest)):
        for name in ("resident_mib", "anonymous_mib"):
            memory.plot(minutes, named[name], label=name.removesuffix("_mib"))
        memory.set(title="Memory of all processes (MiB)", ylim=(0, None))
        for name in named:
            if name.startswith("anonymous_mib."):
                roles.plot(minutes, named[name], label=name.split(".", 1)[1])
        roles.set(title="Anonymous memory by kind of process (MiB)", yscale="log")
        for name, label in (("step_s", "wall clock"), ("step_cpu_s", "processor, all processes")):
            steps.plot(minutes, named[name], ".", markersize=2, label=label)
        steps.set(title="Time of a step (s)", ylim=(0, float(np.quantile(named["step_s"], 0.99)) * 1.5))
        for name, label in (("files", "open files"), ("processes", "processes")):
            rest.plot(minutes, named[name], label=label)
        rest.plot(minutes, named["history_tokens"] / 1000, label="history (1000 tokens)")
        rest.set(title="Open files, processes and history", ylim=(0, None))
        for axes in (memory, roles, steps, rest):
            axes.axvline(warm_up_minutes, color="0.6", linewidth=1, linestyle="--")
            axes.set(xlabel="minutes")
            # Below the axes, where no curve is. The points of `steps` are too small for a legend.
            axes.legend(markerscale=4 if axes is steps else 1, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)
