"""The file of a run from which the option `drafter.warm` lets another run begin."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from das.cluster.cluster import STATE, Cluster
from das.drafter.saved import read_history
from das.engine.learned import HISTORY
from das.general.files import write_bytes
from das.trl.engines.engines import Engines


def save_history(engines: Engines | Cluster, path: Path) -> None:
    """Write the history of all engines, with the weights that the first engine's drafter has learned. Do nothing if
    the drafter has no history."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        engines.save_state(folder)
        found = folder / HISTORY
        if not found.exists():
            return
        if (folder / "engine_1").exists():
            with suppress(ValueError):  # a drafter of the user's writes files of its own
                replace(read_history(folder / STATE), weights=read_history(found).weights).write(found)
        write_bytes(path, found.read_bytes())
