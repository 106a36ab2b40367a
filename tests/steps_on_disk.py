"""The files of a run's finished steps, empty, for tests that resume a run that never ran."""

import gzip
import json
from pathlib import Path


def write_steps(folder: Path, steps: int) -> None:
    """Write the rows and the rollouts of steps 1 to `steps` into `folder`."""
    rollouts = folder / "rollouts"
    rollouts.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n}) + "\n" for n in range(1, steps + 1)))
    for step in range(1, steps + 1):
        (rollouts / f"step_{step:05d}.jsonl.gz").write_bytes(gzip.compress(b'{"response_ids": [1]}\n'))
        (rollouts / f"step_{step:05d}.timeline.json.gz").write_bytes(gzip.compress(b"{}"))
