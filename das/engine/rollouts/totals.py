"""The totals of all rollouts under `python -m das run`. Every engine adds to them, in whatever process it is."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = "DAS_RUN_TOTALS"  # environment variable: the folder into which engines write; unset without `das run`
_own = {"rollouts": 0, "passes": 0, "drafted": 0, "emitted": 0}  # of the engines of this process


def add_to_totals(plain: Mapping[str, Any]) -> None:
    """Count a rollout, if this process runs under `das run`. plain: its report in plain form, as for `sentence`."""
    if FOLDER not in os.environ or not plain["passes"]:
        return
    _own["rollouts"] += 1
    _own["emitted"] += sum(plain["step_emitted"])
    _own["passes"] += plain["passes"]
    _own["drafted"] += plain["drafted"]
    path = Path(os.environ[FOLDER]) / f"{os.getpid()}.json"
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(_own))
    unfinished.replace(path)  # so that a process that is killed leaves no half of a file


def read_totals(folder: Path) -> dict[str, int]:
    """Returns the sums over all processes: rollouts, and passes, drafted and emitted tokens in them."""
    parts = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return {name: sum(part[name] for part in parts) for name in _own}
