"""The files that runs leave, with made-up content."""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.run.run_folder import responses_file, write_timeline

Row = Mapping[str, Any]


def json_lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_arm(
    folder: Path, rows: Iterable[Row], responses: Sequence[Iterable[Row]] = (), timelines: Sequence[Row] = ()
) -> None:
    """Write the rows of an arm's metrics.jsonl and, of its first steps, responses and the times of decode passes."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text(json_lines(rows))
    for step, of_step in enumerate(responses, 1):
        responses_file(folder, step).write_bytes(gzip.compress(json_lines(of_step).encode()))
    for step, timeline in enumerate(timelines, 1):
        write_timeline(folder, step, timeline)


def write_steps(folder: Path, steps: int) -> None:
    """Write steps that can be resumed, though they never ran."""
    rows = [{"step": step} for step in range(1, steps + 1)]
    write_arm(folder, rows, [[{"response_ids": [1]}]] * steps, [{}] * steps)
