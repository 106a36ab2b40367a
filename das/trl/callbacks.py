"""What das tells of a training in a user's script: W&B how its rollouts draft, and the user what the drafts saved."""

import os
import sys
from typing import Any

from transformers import TrainerCallback

from das.budget import DEFAULT_BUDGET
from das.engine.rollouts import totals
from das.engine.rollouts.rollout import Rollout
from das.engine.settings import EngineSettings
from das.general.side_output import side_output


class WandbRecord(TrainerCallback):
    """Adds to the W&B run that transformers starts: `das.method`, `das.drafter` and `das.budget` in its config, method
    and budget as tags. The metrics are in TRL's logs, so transformers sends them on the row of the step, as
    train/das/..."""

    def __init__(self, settings: EngineSettings):
        self._settings = settings
        # transformers starts the run, and W&B reads its group from here. A group that the user has set stays.
        os.environ.setdefault("WANDB_RUN_GROUP", f"das {os.path.basename(settings.model.rstrip('/'))}".strip())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the settings, once transformers has started the run."""
        with side_output("W&B's config"):
            if "wandb" not in args.report_to:
                return
            import wandb

            if (run := wandb.run) is None:  # on other ranks than the main one
                return
            row, drafts = self._settings.method, dict(self._settings.drafter)
            budget = dict(self._settings.budget)
            run.config.update({"das": {"method": row, "drafter": drafts or "history", "budget": budget}}, True)
            run.tags = tuple(dict.fromkeys([*(run.tags or ()), row, str(budget.get("name", DEFAULT_BUDGET["name"]))]))


class LastLine(TrainerCallback):
    """Says at the end of a training what the drafts of its rollouts saved. Under `das run`, which says it of the whole
    command, and without drafts it says nothing."""

    def __init__(self) -> None:
        self._totals = dict.fromkeys(totals.NAMES, 0)

    def add(self, rollout: Rollout) -> None:
        """Count a rollout of the training."""
        report = rollout.report
        totals.add(self._totals, {"passes": report.passes, "drafted": report.drafted, "accepted": rollout.accepted})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Print the line."""
        if state.is_world_process_zero and self._totals["rollouts"] and totals.FOLDER not in os.environ:
            print(totals.line(self._totals), file=sys.stderr, flush=True)
