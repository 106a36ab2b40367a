"""task=check_gpu: check and measure everything that needs a GPU, in nine minutes.

The parts run one after another, the most valuable first, each in its own process with a time limit. A part that fails
or hangs does not stop the others. Nothing is downloaded. When the task is started again, it keeps the parts that passed
with the same code on the same device. Without a GPU the parts run at tiny shapes, which only tests this command.

result.json: parts.NAME.{ok,seconds,line,numbers}; device, commit, date, versions. report.html shows the same. After
each part check_gpu.tar.gz holds all of it, with the lines that parts wrote as they went (parts/NAME/*.jsonl).
"""

import os
import tarfile
import time
from pathlib import Path
from typing import Any

from analysis import check_gpu_page
from das.files import replacing
from experiments.gpu.needs import problem, this_machine
from experiments.gpu.parts import PARTS, Part
from experiments.gpu.run_parts import Bench, run_parts
from experiments.run.errors import RunFailed, UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder, commit, device_name, versions
from experiments.settings.config import RunConfig

LARGEST = 2**22  # bytes of a file that the archive takes


def run(config: RunConfig, overrides: list[str], folder: str) -> None:
    """Run the parts, print a line for each, write result.json and report.html. Raises RunFailed if one failed."""
    parts = chosen(config.task.parts)
    gpu = on_gpu(config.task.device, parts)
    progress = Progress(0)
    made = {"device": device_name() if gpu else "CPU", "commit": commit()}
    progress.note(
        f"{len(parts)} parts on {made['device']}, at most {config.task.seconds:g} s; all in {folder}"
        + ("" if gpu else "; tiny shapes: they test this command, and tell nothing about a GPU")
    )
    run_folder = RunFolder(Path(folder), config.resolved)
    facts = {**made, "date": time.strftime("%Y-%m-%d"), "gpu": gpu, "versions": versions()}

    def write(rows: dict[str, Any]) -> None:
        run_folder.write_result({**facts, "parts": rows})
        check_gpu_page.write(Path(folder) / "report.html", facts, {name: PARTS[name].what for name in rows}, rows)
        archive(Path(folder))

    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    bench = Bench(Path(folder), Path(config.cache), gpu, made)
    rows = run_parts(parts, bench, float(config.task.seconds), progress.note, write)
    progress.note(f"report: {Path(folder) / 'report.html'}")
    failed = [name for name, row in rows.items() if not row["ok"]]
    if failed:
        raise RunFailed(f"{len(failed)} of {len(rows)} parts failed: {', '.join(failed)} (see {folder}/report.html)")


def archive(folder: Path) -> Path:
    """Write all results so far, models and other large files left out, into check_gpu.tar.gz. Returns its path."""
    path = folder / "check_gpu.tar.gz"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.stat().st_size <= LARGEST]
    with replacing(path) as stream, tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for file in files:
            if file != path:
                tar.add(file, file.relative_to(folder))
    return path


def chosen(names: Any) -> list[Part]:
    """Return the parts with these names (None: all), in the order of PARTS. Raises UserError for an unknown part."""
    if names is None:
        return list(PARTS.values())
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise UserError(f"task.parts={list(names)}: choose from {', '.join(PARTS)}")
    return [part for part in PARTS.values() if part.name in names]


def on_gpu(device: str, parts: list[Part]) -> bool:
    """Return whether the parts run on a GPU. device: auto, cuda or cpu. Raises UserError if they cannot run there."""
    if device == "cpu":
        return False
    machine = this_machine()
    if device == "auto" and machine.driver is None:
        return False
    if why := problem(machine, parts):
        raise UserError(f"task.device={device}: {why}")
    return True
