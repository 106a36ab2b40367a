"""W&B: the same rows as metrics.jsonl, one run per arm, one group per comparison; offline unless asked otherwise.

An outage neither stops nor holds up a run: what W&B misses is in metrics.jsonl, and in an offline run if there is one.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

ANSWER_S = 30.0  # seconds the server gets to answer at the start
UPLOAD_S = 120.0  # seconds for what is left to upload at the end; the rest stays on disk, for `wandb sync`

# What the runs table shows of a metric besides its last value; names: docs/metrics.md.
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
    """A W&B run, or nothing when `wandb=off`."""

    def __init__(self, config: DictConfig, arm: str, group: str, folder: Path, run_id: str | None = None):
        """folder: the arm's, with its meta.json. run_id: W&B's id of the run to go on in; without one, the run that
        `folder` holds from an earlier start, or else a new one."""
        self.run: Any = None
        self._trouble: list[str] = []
        if config.wandb == "off":
            return
        import wandb

        run_id = run_id or earlier_run(folder)
        resolved = OmegaConf.to_container(config, resolve=True)
        assert isinstance(resolved, dict)
        meta = json.loads((folder / "meta.json").read_text())
        self._failed = True
        start = partial(
            wandb.init,
            project=config.wandb_project,
            id=run_id,
            resume=None if run_id is None else "allow",
            group=group,
            name=f"{group}/{arm}",
            job_type=config.task.name,
            tags=[arm, config.policy.name, config.data.name, config.reward.name, config.budget.name],
            dir=str(folder),
            config={**{str(key): value for key, value in resolved.items()}, "meta": meta},
            settings=wandb.Settings(
                init_timeout=ANSWER_S,
                finish_timeout=UPLOAD_S,
                silent=True,
                console="off",
                x_disable_stats=True,
                save_code=False,
                disable_git=True,  # would upload the uncommitted diff; the commit is named here instead
                git_commit=meta["commit"].removesuffix("-dirty"),
            ),
        )
        try:
            self.run = start(mode=config.wandb)
        except wandb.Error as error:  # no network, no key
            if config.wandb != "online":
                raise
            self._trouble = [f"W&B is out of reach, recording offline ({' '.join(str(error).split())[:200]})"]
            wandb.teardown()  # its process takes the failed run for one that goes on
            self.run = start(mode="offline")
        self.run.define_metric("step", hidden=True)
        self.run.define_metric("*", step_metric="step")
        for name, summary in SUMMARY.items():
            self.run.define_metric(name, step_metric="step", summary=summary)

    def log(self, row: dict[str, Any]) -> list[str]:
        """Log one step: numbers, digests as texts, of the alarms how many. Returns what went wrong, a line each."""
        if self.run is not None:
            values = {key: value for key, value in row.items() if isinstance(value, int | float | str)}
            try:
                self.run.log({**values, "alarms": len(row["alarms"])}, step=int(row["step"]))
            except ConnectionError as error:
                self._trouble.append(f"W&B's own process has ended ({error}): from here on metrics.jsonl alone")
                self.run = None
        trouble, self._trouble = self._trouble, []
        return trouble

    def end(self, final: dict[str, Any]) -> None:
        """The run came to its end: digests of weights and optimizer into the summary."""
        if self.run is not None:
            self.run.summary.update(final)
            self._failed = False

    def close(self) -> None:
        """Close the run; one that `end` never heard of is marked as failed."""
        if self.run is not None:
            self.run.finish(exit_code=int(self._failed))


def earlier_run(folder: Path) -> str | None:
    """Id of the W&B run that lies in the folder; None if none does."""
    found = sorted((folder / "wandb").glob("*run-*-*/run-*.wandb"))
    return found[-1].stem.removeprefix("run-") if found else None
