"""Runs parts one after another, each in a separate process with a time limit."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from das.files import write_text
from experiments.gpu import child
from experiments.gpu.parts import Part
from experiments.gpu.verdict import DONE, Scale
from experiments.run.processes import WARM


@dataclass(frozen=True)
class Bench:
    """The folders and the device that all parts use. identity: names the code and the device; an earlier verdict is
    reused only if it has the same identity."""

    folder: Path
    cache: Path
    gpu: bool
    identity: Mapping[str, str]


def run_parts(
    parts: Sequence[Part],
    bench: Bench,
    seconds: float,
    note: Callable[[str], None],
    after: Callable[[dict[str, Any]], None] = lambda rows: None,
) -> dict[str, dict[str, Any]]:
    """Run the parts. Returns the row of each: ok, seconds, line, numbers. If a part fails, the others still run.

    seconds: time limit for all parts together; a part that would begin later is skipped. If a part passed in an earlier
    run with the same identity, its row is reused. after: called after each part with all rows so far.
    """
    rows: dict[str, dict[str, Any]] = {}
    began = time.perf_counter()
    context = warm_processes(bench.gpu)
    form = "graphs"
    for part in parts:
        row = kept(part, bench)
        before = rows.get(part.unless or "")
        if before is not None and (before["ok"] or "left out" in before):
            row = {"ok": True, "seconds": 0.0, "line": f"left out: {part.unless} answered it", "left out": True}
        elif row is None:
            left = seconds - (time.perf_counter() - began)
            if left <= 0:
                row = {"ok": False, "seconds": 0.0, "line": "not tried: the time is over; run the command again"}
            else:
                limit = part.seconds if bench.gpu else 2 * part.seconds
                row = run_part(part, bench, min(limit, left), form, context)
        rows[part.name] = row
        if row["ok"]:
            form = row.get("numbers", {}).get("form", form)
        note(f"{'ok    ' if row['ok'] else 'FAILED'} {part.name:<20s} {row['seconds']:5.0f} s  {row['line']}")
        after(rows)
    return rows


def kept(part: Part, bench: Bench) -> dict[str, Any] | None:
    """Return the row of a part that passed in an earlier run with the same code and device, or None."""
    path = bench.folder / "parts" / part.name / DONE
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    row: dict[str, Any] = found["row"]
    return row if found["identity"] == dict(bench.identity) and row["ok"] else None


def warm_processes(gpu: bool) -> Any:
    """Return the multiprocessing context of the parts: a fork of a process that has imported vLLM, which spares each
    part 10 to 20 s. On a GPU, new interpreters if such a fork cannot use the device."""
    # torch must ask NVML, not CUDA, whether there is a GPU: a fork of a process that called CUDA cannot use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([WARM, "experiments.gpu.child"])
    if gpu:
        trial = context.Process(target=child.use_device)
        trial.start()
        trial.join()
        if trial.exitcode:
            return multiprocessing.get_context("spawn")
    return context


def run_part(part: Part, bench: Bench, seconds: float, form: str, context: Any) -> dict[str, Any]:
    """Run a part in a process for at most `seconds`. Returns its row. form: of its engines (engines.FORMS). context: of
    multiprocessing."""
    folder = bench.folder / "parts" / part.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in (child.VERDICT, DONE, "lines.jsonl"):
        (folder / name).unlink(missing_ok=True)
    scale = Scale(bench.gpu, folder.absolute(), bench.cache.absolute(), form)
    process = context.Process(target=child.run, args=(part.function, scale))
    began = time.perf_counter()
    process.start()
    try:
        process.join(seconds)
        ended = f"did not end within {seconds:.0f} s and was ended"
        if process.exitcode is not None:
            ended = f"ended with {process.exitcode}"
    finally:
        with suppress(ProcessLookupError):  # the processes that the part started are in its process group
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    seconds = time.perf_counter() - began
    row: dict[str, Any] = {"ok": False, "seconds": seconds, "line": f"{ended}: see {folder / child.LOG}"}
    if (folder / child.VERDICT).exists():
        row |= json.loads((folder / child.VERDICT).read_text())
    write_text(folder / DONE, json.dumps({"identity": dict(bench.identity), "row": row}))
    return row
