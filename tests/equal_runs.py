"""Say in which lines and files two runs differ that should be equal, times aside."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis import read
from analysis.metrics import METRICS
from experiments.arm.resume import CHECKPOINTS
from experiments.training import checkpoint

# Files of the last checkpoint. It may lack the last two: a draft head with its optimizers, and the history of past
# responses.
BYTES = ("model.safetensors", checkpoint.OPTIMIZER, "scheduler.pt", "rng_state.pth", "head.pt", "history.npz")
# What of a row does not depend on which engine of a cluster made which response.
PLACELESS = ("step", "completions_digest", "rewards_digest", "loss", "grad_norm")
FIGURES = ("rollout_and_reward.png", "live_requests.png")  # of a comparison


def compare(first: Path, second: Path, cluster: bool = False) -> list[str]:
    """Return a line for each difference between two runs, trainings or comparisons. cluster: the second ran on a
    cluster, so only what does not depend on placement is compared."""
    arms = [path.relative_to(first) for path in sorted(first.glob("arms/*"))]
    differences = []
    for name in (Path(), *arms):
        found = differing_metrics(first / name, second / name, cluster)
        differences += [f"{name}/metrics.jsonl{what}" for what in found]
    for arm in arms or [Path()]:
        differences += [f"{arm}/{what}" for what in differing_files(first / arm, second / arm, cluster)]
    if arms:
        differences += [f"{figure} is missing" for figure in FIGURES if not (second / figure).exists()]
        if read.result(first)["identical"] != read.result(second)["identical"]:
            differences.append("result.json: identical")
    return differences


def timeless(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the numbers that depend on the clock."""
    clock = {metric.name for metric in METRICS if metric.clock}
    return [
        {name: value for name, value in row.items() if not name.endswith("_s") and name not in clock} for row in rows
    ]


def differing_metrics(first: Path, second: Path, cluster: bool = False) -> Iterator[str]:
    """Yield the differences between the metrics.jsonl of two folders, apart from times, and from which arm of a
    comparison came first in a step."""
    rows, other_rows = (
        timeless(sorted(read.metrics(folder), key=lambda row: row["arm"])) for folder in (first, second)
    )
    if [(row["arm"], row["step"]) for row in rows] != [(row["arm"], row["step"]) for row in other_rows]:
        yield ": gaps or doubles"
    for row, other in zip(rows, other_rows, strict=False):
        for key in PLACELESS if cluster else sorted({*row, *other}):
            if row.get(key) != other.get(key):
                yield f", step {row['step']}: {key}"


def differing_files(first: Path, second: Path, cluster: bool = False) -> Iterator[str]:
    """Yield the names of files that differ between two folders of an arm. Compared are final digests and, unless the
    second ran on a cluster, rollouts (without their times) and checkpoints."""
    if read.final(first) != read.final(second):
        yield "final.json"
    if cluster:
        return
    names = [sorted(path.name for path in (arm / "rollouts").iterdir()) for arm in (first, second)]
    if names[0] != names[1]:
        yield "rollouts: other files"
        return
    for step in range(1, len(names[0]) // 2 + 1):
        if timeless(read.rollout(first, step)) != timeless(read.rollout(second, step)):
            yield f"rollouts, step {step}"
    steps, other_steps = (checkpoint.steps(arm / CHECKPOINTS) for arm in (first, second))
    if steps != other_steps:
        yield "other checkpoints"
        return
    files, others = (checkpoint.read_manifest(arm / CHECKPOINTS, steps[0])["files"] for arm in (first, second))
    for name in BYTES:
        if files.get(name) != others.get(name):
            yield f"{name} of the last checkpoint"
