"""What a run left in its folder, for the figures of the report. Each file is read once."""

from functools import cached_property
from pathlib import Path
from typing import Any

from analysis import read
from analysis.arms import WEIGHTS
from analysis.identity import differing

Rows = list[dict[str, Any]]


class Record:
    """The files of one run. Of a comparison, record["das"] is the rows of the arm das, one for each step."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._arms: dict[str, Rows] = {}

    def __getitem__(self, arm: str) -> Rows:
        if arm not in self._arms:
            self._arms[arm] = read.metrics(self.folder / "arms" / arm)
        return self._arms[arm]

    @cached_property
    def result(self) -> dict[str, Any]:
        """result.json."""
        return read.result(self.folder)

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml."""
        return read.config(self.folder)

    @cached_property
    def rows(self) -> Rows:
        """metrics.jsonl of a run that has no arms."""
        return read.metrics(self.folder)

    @property
    def arms(self) -> list[str]:
        """The arms of a comparison. The first is the baseline."""
        return list(self.result["arms"])

    def timeline(self, arm: str, step: int) -> dict[str, Any]:
        """The decode passes of a step. arm: the arm's folder inside the run's, such as "arms/das"."""
        return read.timeline(self.folder / arm, step)

    def rollout(self, arm: str, step: int) -> list[dict[str, Any]]:
        """The responses of a step. arm: the arm's folder inside the run's."""
        return read.rollout(self.folder / arm, step)

    @property
    def identity(self) -> str:
        """In words, whether all arms of a comparison have identical bits."""
        compared = self.result["identical"]
        if not compared:
            return "not compared: no arm has to be identical"
        if found := [f"{name}: {what}" for name, checks in compared.items() for what in differing(checks)]:
            return "differ: " + ", ".join(found)
        if trained := self.result.get("trained"):
            return f"equal completions and rewards; {WEIGHTS[trained]}"
        return "equal in every bit, also the optimizer's state"

    @property
    def identical(self) -> bool:
        """Whether every arm's results equal the baseline's, bit for bit."""
        return self.identity.startswith("equal")

    @property
    def note(self) -> str:
        """A sentence about a comparison: its policy, its data, its number of steps and the sizes of a step."""
        steps = self.result["arms"][self.result["baseline"]]["rollout_s"]["n"]
        trainer = self.config["trainer"]
        responses = trainer["per_device_train_batch_size"] * trainer.get("gradient_accumulation_steps", 1)
        problems = responses * self.config.get("engine", {}).get("processes", 1) // trainer["num_generations"]
        return (
            f"Policy {self.config['policy']['name']}, data {self.config['data']['name']}; {steps} steps of {problems} "
            f"problems x {trainer['num_generations']} responses of at most {trainer['max_completion_length']} tokens."
        )
