"""Tell W&B, in a user's script, how its rollouts draft: config, tags and group, so that runs can be told apart."""

import os
from typing import Any

from transformers import TrainerCallback

from das.budget import DEFAULT_BUDGET
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
            run = _run(args)
            if run is None:
                return
            row, drafts = self._settings.method, dict(self._settings.drafter)
            budget = dict(self._settings.budget)
            run.config.update({"das": {"method": row, "drafter": drafts or "history", "budget": budget}}, True)
            run.tags = tuple(dict.fromkeys([*(run.tags or ()), row, str(budget.get("name", DEFAULT_BUDGET["name"]))]))


def _run(args: Any) -> Any:
    """Return the W&B run of this training; None if it reports to others only, or on other ranks than the main one."""
    if "wandb" not in args.report_to:
        return None
    import wandb

    return wandb.run
