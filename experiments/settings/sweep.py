"""A sweep (`python run.py -m`): a job that fails ends no other job, and the exit code says so in the end."""

import json
import multiprocessing
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.run.errors import FAILED, INTERRUPTED, TERMINATED, say, stop
from experiments.run.run_folder import add_rows

FAILURES = "failed.jsonl"  # in the sweep's folder: a row for each job that failed


@contextmanager
def job() -> Iterator[None]:
    """Wrap a job of Hydra. If it is one of a sweep and fails, note this, and let the sweep go on: Hydra itself would
    end it. A sweep that is told to end does; Ctrl-C reaches jobs in processes of a launcher, too, which leave it to the
    one that started them."""
    config = HydraConfig.get()
    if config.mode is not RunMode.MULTIRUN:
        yield
        return
    if multiprocessing.current_process().name != "MainProcess":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    code: Any = 0
    try:
        yield
    except SystemExit as ended:
        if ended.code in (INTERRUPTED, TERMINATED):
            raise
        code = ended.code
    except Exception:  # a bug
        traceback.print_exc()
        code = FAILED
    if code:
        name = f"job {config.job.num} ({' '.join(overrides_of(config))})"
        say(f"{name} failed, which ends no other job")
        add_rows(Path(config.sweep.dir) / FAILURES, [{"job": name, "code": code}])


def overrides_of(config: Any) -> list[str]:
    """Return the overrides of a job as a user types them. config: Hydra's own."""
    return [override.removeprefix("++") for override in config.overrides.task]


class SweepEnd(Callback):
    """Called by Hydra (configs/config.yaml)."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Name the jobs that failed, and exit with the largest of their codes."""
        path = Path(config.hydra.sweep.dir) / FAILURES
        if path.exists():
            failed = [json.loads(line) for line in path.read_text().splitlines()]
            names, code = ", ".join(each["job"] for each in failed), max(each["code"] for each in failed)
            sys.stdout.flush()
            stop(f"{len(failed)} of the jobs failed: {names}; the others are in {path.parent}", code)
