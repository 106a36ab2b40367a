"""Send the rows of metrics.jsonl to W&B. Each arm has a W&B run, and each comparison has a W&B group.

By default W&B is offline. A failure of W&B neither stops nor delays training: metrics.jsonl has every row.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from analysis import read
from analysis.metrics import METRICS
from das.general.side_output import side_output
from experiments.settings.config import RunConfig

WANDB_HEADER = b":W&B\xe1\xbe\x00"  # with which a file of W&B begins
ANSWER_S = 30.0  # seconds the server gets to answer at the start
UPLOAD_S = 120.0  # seconds for the upload at the end; what remains stays on disk for `wandb sync`


class Tracker:
    """Sends the rows of one arm to its W&B run. Does nothing if `wandb=off`."""

    def __init__(self, config: RunConfig, group: str, folder: Path):
        """Start the run, or continue an earlier W&B run in the folder: it gets the rows that it lacks.

        config: the config that the run records. group: name of the W&B group. folder: the arm's, with meta.json.
        """
        self.run: Any = None
        self._failed = True  # until `end` is called
        self._trouble: list[str] = []
        if config.wandb != "off":
            with side_output("W&B", self._trouble.append):
                self._start(config, group, folder)

    def _start(self, config: RunConfig, group: str, folder: Path) -> None:
        import wandb

        run_id = earlier_run(folder)
        meta = json.loads((folder / "meta.json").read_text())
        start: Callable[..., Any] = partial(
            wandb.init,
            project=config.wandb_project,
            id=run_id,
            resume=None if run_id is None else "allow",
            group=group,
            name=f"{group}/{config.arm.name}",
            job_type=config.task.name,
            tags=[config.arm.name, config.policy.name, config.data.name, config.reward.name, config.budget["name"]],
            dir=str(folder),
            config={**config.resolved, "meta": meta},
            settings=wandb.Settings(
                init_timeout=ANSWER_S,
                finish_timeout=UPLOAD_S,
                silent=True,
                console="off",
                x_disable_stats=True,
                save_code=False,
                disable_git=True,  # it would upload the uncommitted diff; git_commit names the commit instead
                git_commit=meta["commit"].removesuffix("-dirty"),
            ),
        )
        try:
            run = start(mode=config.wandb)
        except wandb.Error as error:  # no network, no key
            if config.wandb != "online":
                raise
            self._trouble = [f"W&B is out of reach, recording offline ({' '.join(str(error).split())[:200]})"]
            _end_wandb()  # W&B's process still counts the failed run as active
            run = start(mode="offline")
        run.define_metric("step", hidden=True)
        run.define_metric("*", step_metric="step")
        for metric in METRICS:
            if metric.wandb:
                run.define_metric(metric.name, step_metric="step", summary=metric.wandb)
        for row in [] if run_id is None else lacking(folder, run_id):
            self._send(run, row)
        self.run = run

    def log(self, row: dict[str, Any]) -> list[str]:
        """Send one step to W&B: its numbers, its digests as text, and how many alarms it has. row: docs/reference.md.

        Returns a line for each problem with W&B since the last call.
        """
        run, self.run = self.run, None  # none, unless it takes the row
        if run is not None:
            with side_output("W&B (from now on metrics.jsonl alone has the rows)", self._trouble.append):
                self._send(run, row)
                self.run = run
            if self.run is None:
                with side_output("the end of W&B's own process", self._trouble.append):
                    _end_wandb()  # the next run in this process gets a new one
        trouble, self._trouble = self._trouble, []
        return trouble

    @staticmethod
    def _send(run: Any, row: dict[str, Any]) -> None:
        values = {key: value for key, value in row.items() if isinstance(value, int | float | str)}
        for evaluation in row.get("eval", []):
            run.log(evaluation_values(evaluation), step=int(evaluation["step"]))
        values |= cluster_values(row.get("cluster", {}))
        run.log({**values, "alarms": len(row["alarms"])}, step=int(row["step"]))

    def end(self, final: dict[str, Any]) -> None:
        """Mark the training as finished. final: digests of weights and optimizer, for the summary of the W&B run."""
        self._failed = False
        if self.run is not None:
            with side_output("W&B's summary"):
                self.run.summary.update(final)

    def close(self) -> None:
        """Close the run. It is marked as failed unless `end` was called."""
        if self.run is not None:
            with side_output("the end of W&B's run"):
                self.run.finish(exit_code=int(self._failed))


def _end_wandb() -> None:
    """End W&B's own process. If it still runs after ANSWER_S seconds, kill it: it may wait for its server for ever."""
    import wandb

    ending = Thread(target=wandb.teardown, daemon=True)
    ending.start()
    ending.join(ANSWER_S)
    if ending.is_alive():
        for child in psutil.Process().children():
            if child.name() == "wandb-core":
                child.kill()
        ending.join()


def evaluation_values(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an evaluation's numbers and digest under their names in W&B: eval/pass_at_1, eval/length_mean ..."""
    values = {key: value for key, value in evaluation.items() if isinstance(value, int | float | str)}
    values |= {f"pass_at_{k}": value for k, value in evaluation["pass_at_k"].items()}
    return {f"eval/{key}": value for key, value in values.items()}


def cluster_values(cluster: Mapping[str, Any]) -> dict[str, float]:
    """Return a cluster's numbers in a step under their names in W&B, such as cluster/engine_0/tokens_per_pass."""
    values = {f"cluster/{name}": value for name, value in cluster.items() if isinstance(value, int | float)}
    for engine, row in cluster.get("by_engine", {}).items():
        values |= {f"cluster/engine_{engine}/{name}": value for name, value in row.items() if value is not None}
    return values


def lacking(folder: Path, run_id: str) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that no W&B file of this run holds: W&B's process writes some time after a step,
    so a killed one may have lost them. folder: of the arm."""
    rows = read.metrics(folder) if (folder / "metrics.jsonl").exists() else []
    files = [file for file in folder.glob(f"wandb/*run-*/run-{run_id}.wandb") if not is_empty(file)] if rows else []
    held = {
        record["history"]["item"]["_step"] for file in files for record in records(file) if record["type"] == "history"
    }
    return [row for row in rows if row["step"] not in held]


def is_empty(file: Path) -> bool:
    """Return whether an offline W&B run's file has no record."""
    with file.open("rb") as begun:
        return WANDB_HEADER.startswith(begun.read(len(WANDB_HEADER) + 1))


def records(file: Path) -> list[dict[str, Any]]:
    """Read the records of an offline W&B run's file, without an incomplete record at its end. Raises
    CalledProcessError if W&B's reader cannot."""
    reader = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    offline = {**os.environ, "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false"}
    read_out = subprocess.run(reader, env=offline, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in read_out.splitlines()]


def earlier_run(folder: Path) -> str | None:
    """Return the id of the newest W&B run in the folder of an arm; None if there is none."""
    files = (folder / "wandb").glob("*run-*-*/run-*.wandb")
    runs = sorted(files, key=lambda file: file.parent.name.removeprefix("offline-"))  # by the time of their start
    return runs[-1].stem.removeprefix("run-") if runs else None
