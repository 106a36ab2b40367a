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
from experiments.gpu.verdict import Scale

DONE = "done.json"  # written when a part ends; holds its row of the result, and the identity of code and device


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
    for part in parts:
        row = kept(part, bench)
        if row is None:
            left = seconds - (time.perf_counter() - began)
            if left <= 0:
                row = {"ok": False, "seconds": 0.0, "line": "not tried: the time is over; run the command again"}
            else:
                row = run_part(part, bench, min(60 * part.minutes, left))
        rows[part.name] = row
        note(f"{'ok    ' if row['ok'] else 'FAILED'} {part.name:<16s} {row['seconds']:5.0f} s  {row['line']}")
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


def run_part(part: Part, bench: Bench, seconds: float) -> dict[str, Any]:
    """Run a part in a process for at most `seconds`. Returns its row."""
    folder = bench.folder / "parts" / part.name
    folder.mkdir(parents=True, exist_ok=True)
    for name in (child.VERDICT, DONE):
        (folder / name).unlink(missing_ok=True)
    # On a GPU a part has an interpreter of its own. On a CPU it is forked, with all that the task has imported.
    context: Any = multiprocessing.get_context("spawn" if bench.gpu else "fork")
    scale = Scale(bench.gpu, folder.absolute(), bench.cache.absolute())
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
