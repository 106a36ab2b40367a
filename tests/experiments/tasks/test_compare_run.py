"""What a comparison refuses before any arm starts."""

from composed import composed_arm
from refusals import one_line

from experiments.settings.config import RunConfig
from experiments.tasks.compare import check_train_once


def arms(*names: str) -> dict[str, RunConfig]:
    return {name: composed_arm(name, "task.train_once=true") for name in names}


def test_arms_that_cannot_take_the_first_arms_weights() -> None:
    with one_line("task.train_once=true: eagle3_online would learn from the training's forward passes"):
        check_train_once(arms("none", "eagle3_online", "das"))
    check_train_once(arms("eagle3_online", "none", "das", "stock", "das_self", "eagle3_frozen"))
