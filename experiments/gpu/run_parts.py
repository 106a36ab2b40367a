"""Runs parts one after another, each in a separate process with a time limit."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from das.files import write_text
from das.process import die_with_parent
from experiments.gpu.child import VERDICT
from experiments.gpu.parts import Part
from experiments.run.errors import CONFIGS

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
    for name in (VERDICT, DONE):
        (folder / name).unlink(missing_ok=True)
    command = [sys.executable, "-m", "experiments.gpu.child", part.function, str(folder.absolute())]
    command += [str(bench.cache.absolute()), "gpu" if bench.gpu else "cpu"]
    paths = [str(CONFIGS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    began = time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            ended = f"ended with {child.wait(seconds)}"
        except subprocess.TimeoutExpired:
            ended = f"did not end within {seconds:.0f} s and was ended"
        finally:
            with suppress(ProcessLookupError):  # the processes that the part started are in its process group
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    row: dict[str, Any] = {"ok": False, "seconds": time.perf_counter() - began, "line": f"{ended}: see {log.name}"}
    if (folder / VERDICT).exists():
        row |= json.loads((folder / VERDICT).read_text())
    write_text(folder / DONE, json.dumps({"identity": dict(bench.identity), "row": row}))
    return row
