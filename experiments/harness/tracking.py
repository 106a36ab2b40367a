"""Send the rows of metrics.jsonl to W&B. Each arm has a W&B run, and each comparison has a W&B group.

By default W&B is offline. An outage of W&B neither stops nor delays training: metrics.jsonl has every row.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import psutil

from experiments.harness.config import RunConfig

ANSWER_S = 30.0  # seconds the server gets to answer at the start
UPLOAD_S = 120.0  # seconds for the upload at the end; what remains stays on disk for `wandb sync`

# Metric -> the summaries of it that W&B shows in its table of runs. docs/metrics.md explains the metrics.
SUMMARY = {
    "reward": "mean,max,last",
    "rollout_s": "mean,min,max,last",
    "step_s": "mean,min,max,last",
    "sync_s": "mean,max,last",
    "tokens_per_pass": "mean,min,max,last",
    "draft_share": "mean,max,last",
    "length_mean": "mean,last",
    "length_max": "mean,max,last",
    "sync_error": "max,last",
    "sampling_logp_difference": "max,last",
    "alarms": "max,last",
}


class Tracker:
    """Sends the rows of one arm to its W&B run. Does nothing if `wandb=off`."""

    def __init__(self, config: RunConfig, group: str, folder: Path, run_id: str | None = None):
        """Start the run.

        config: the config that the run records. group: name of the W&B group. folder: the arm's, with meta.json.
        run_id: id of the W&B run to continue; None: an earlier W&B run in `folder` is continued, if there is one.
        """
        self.run: Any = None
        self._failed = True  # until `end` is called
        self._trouble: list[str] = []
        if config.wandb == "off":
            return
        import wandb

        run_id = run_id or earlier_run(folder)
        meta = json.loads((folder / "meta.json").read_text())
        start: Callable[..., Any] = partial(
            wandb.init,
            project=config.wandb_project,
            id=run_id,
            resume=None if run_id is None else "allow",
            group=group,
            name=f"{group}/{config.arm.name}",
            job_type=config.task["name"],
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
            self.run = start(mode=config.wandb)
        except wandb.Error as error:  # no network, no key
            if config.wandb != "online":
                raise
            self._trouble = [f"W&B is out of reach, recording offline ({' '.join(str(error).split())[:200]})"]
            _end_wandb()  # W&B's process still counts the failed run as active
            self.run = start(mode="offline")
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        for name, summary in SUMMARY.items():
            self.run.define_metric(name, step_metric="step", summary=summary)

    def log(self, row: dict[str, Any]) -> list[str]:
        """Send one step to W&B: its numbers, its digests as text, and how many alarms it has. row: see docs/metrics.md.

        Returns a line for each problem with W&B since the last call.
        """
        if self.run is not None:
            values = {key: value for key, value in row.items() if isinstance(value, int | float | str)}
            try:
                for evaluation in row.get("eval", []):
                    self.run.log(evaluation_values(evaluation), step=int(evaluation["step"]))
                values |= cluster_values(row.get("cluster", {}))
                for group in ("partial", "dynamic_sampling"):
                    counts = row.get(group, {}).items()
                    values |= {f"{group}/{name}": count for name, count in counts if isinstance(count, int | float)}
                self.run.log({**values, "alarms": len(row["alarms"])}, step=int(row["step"]))
            except ConnectionError as error:
                self._trouble.append(
                    f"W&B's own process has ended ({error}): from now on metrics.jsonl alone has the rows"
                )
                self.run = None
                _end_wandb()  # the next run in this process gets a new one
        trouble, self._trouble = self._trouble, []
        return trouble

    def end(self, final: dict[str, Any]) -> None:
        """Mark the training as finished. final: digests of weights and optimizer, for the summary of the W&B run."""
        if self.run is not None:
            self.run.summary.update(final)
            self._failed = False

    def close(self) -> None:
        """Close the run. It is marked as failed unless `end` was called."""
        if self.run is not None:
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


def earlier_run(folder: Path) -> str | None:
    """Return the id of the newest W&B run in the folder of an arm; None if there is none."""
    runs = sorted((folder / "wandb").glob("*run-*-*/run-*.wandb"))
    return runs[-1].stem.removeprefix("run-") if runs else None
