"""Totals of several rollouts: of all under `python -m das run`, and of an engine's last ones, for a line in its log."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from das.engine.rollouts.report import sentence
from das.general.files import write_text
from das.general.side_output import side_output

FOLDER = "DAS_RUN_TOTALS"  # environment variable: the folder into which engines write; unset without `das run`
NAMES = ("rollouts", "passes", "drafted", "accepted")
ROLLOUTS_OF_A_LINE = 50
_own = dict.fromkeys(NAMES, 0)  # of the engines of this process
logger = logging.getLogger("das")


def add(totals: dict[str, int], plain: Mapping[str, Any]) -> None:
    """Count a rollout. plain: its report in plain form, as for `sentence`."""
    totals["rollouts"] += 1
    for name in NAMES[1:]:
        totals[name] += plain[name]


def line(totals: Mapping[str, int]) -> str:
    """Returns one line about rollouts: what was accepted and saved. totals: of NAMES, with at least one rollout."""
    ending = "s" * (totals["rollouts"] > 1)
    return sentence(totals) + f", in {totals['rollouts']} rollout{ending}"


def add_to_totals(plain: Mapping[str, Any]) -> None:
    """Count a rollout, if this process runs under `das run`. plain: its report in plain form, as for `sentence`."""
    if FOLDER not in os.environ or not plain["passes"]:
        return
    add(_own, plain)
    with side_output("the sum of `das run`"):
        write_text(Path(os.environ[FOLDER]) / f"{os.getpid()}.json", json.dumps(_own))


def read_totals(folder: Path) -> dict[str, int]:
    """Returns the sums of NAMES over all processes."""
    parts = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return {name: sum(part[name] for part in parts) for name in NAMES}


class LinesInTheLog:
    """Says in an engine's log what drafts saved, for frameworks that report nothing of them: after the first rollout,
    and then once for every ROLLOUTS_OF_A_LINE."""

    def __init__(self) -> None:
        self._totals, self._due = dict.fromkeys(NAMES, 0), 1

    def add(self, plain: Mapping[str, Any]) -> None:
        """Count a rollout. plain: its report in plain form. The line is a warning, since verl hides what is less."""
        if not plain["passes"]:
            return
        add(self._totals, plain)
        if self._totals["rollouts"] == self._due:
            logger.warning("%s", line(self._totals))
            self._totals, self._due = dict.fromkeys(NAMES, 0), ROLLOUTS_OF_A_LINE
