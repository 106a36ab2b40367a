"""task=check_gpu: check and measure what needs a GPU, in one call of nine minutes.

The parts (experiments/gpu/parts.py) run one after another, the most valuable first, each in processes of its own with a
time limit. A part that fails or hangs does not stop the others. Nothing is downloaded. Without a GPU the parts run at
tiny shapes, which only tests this command.

lines.jsonl has a line for each number as soon as it is known, and it is printed at once. result.json:
parts.NAME.{ok, seconds, lines}; device, commit, date, versions. latency.json: for task.latency of other tasks.
"""

import os
import time
from pathlib import Path

from das.commands.doctor import nvidia_driver
from experiments.gpu.parts import PARTS, run_parts
from experiments.gpu.scale import Scale
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, commit, device_name, versions
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Run the parts, and write result.json. Raises RunFailed if one failed."""
    began, task, progress = time.perf_counter(), config.task, Progress(0)
    names = list(PARTS) if task.parts is None else [name for name in PARTS if name in task.parts]
    if not names or (task.parts is not None and len(names) < len(task.parts)):
        raise UserError(f"task.parts={list(task.parts)}: choose from {', '.join(PARTS)}")
    recorded = None if task.recorded is None else Path(task.recorded)
    if recorded is not None and not recorded.exists():
        raise UserError(f"task.recorded={recorded} does not exist")
    gpu = task.device != "cpu" and nvidia_driver() is not None
    if task.device == "cuda" and not gpu:
        raise UserError("task.device=cuda: no NVIDIA driver is loaded (python -m das doctor says more)")
    run_folder = RunFolder(Path(folder), config.resolved)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    tiny = "" if gpu else "; tiny shapes on a CPU: they test this command, and tell nothing about a GPU"
    progress.note(f"{', '.join(names)}: at most {task.seconds:g} s; all in {folder}{tiny}")
    scale = Scale(gpu, Path(folder).absolute(), Path(config.cache).absolute(), recorded and recorded.absolute())
    parts = run_parts(names, scale, float(task.seconds) - (time.perf_counter() - began))
    made = {"device": device_name() if gpu else "CPU", "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    run_folder.write_result({**made, "gpu": gpu, "versions": versions(), "parts": parts})
    for name, row in parts.items():
        for line in row["lines"]:
            progress.note(f"{'ok    ' if row['ok'] else 'FAILED'} {name:<8s} {row['seconds']:4.0f} s  {line}")
    if failed := [name for name, row in parts.items() if not row["ok"]]:
        raise RunFailed(f"{len(failed)} of {len(parts)} parts failed: {', '.join(failed)} (see {folder})")
