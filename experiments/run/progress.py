"""Live progress: one line a step and arm, with the time that is left."""

import sys
import time
from typing import Any, TextIO


class Progress:
    """Prints as work goes on. steps: training steps of each arm; arms: how many arms report."""

    def __init__(self, steps: int, arms: int = 1, terminal: TextIO = sys.stdout):
        self.terminal = terminal
        self.steps = steps
        self.arms = arms
        self.total = steps * arms
        self.done = 0
        self.began: float | None = None

    def note(self, text: str) -> None:
        print(text, file=self.terminal, flush=True)

    def resume(self, step: int) -> None:
        """The first `step` steps were done by an earlier process."""
        self.total = (self.steps - step) * self.arms

    def start(self) -> None:
        """The first step begins now: set-up does not count towards the estimate."""
        self.began = time.perf_counter()

    def step(self, row: dict[str, Any]) -> None:
        """Report one finished step of one arm."""
        if self.began is None:
            self.began = time.perf_counter() - row.get("step_s", row["rollout_s"])
        self.done += 1
        left = (time.perf_counter() - self.began) / self.done * (self.total - self.done)
        print(
            f"step {row['step']:3d}/{self.steps}  {row['arm']:<13s} "
            + (f"reward {row['reward']:.3f}  " if "reward" in row else "")
            + f"rollout {row['rollout_s']:6.2f} s  tokens/pass {row['tokens_per_pass']:5.2f}  "
            f"longest {row['length_max']:5d}  ETA {int(left) // 60}:{int(left) % 60:02d}",
            file=self.terminal,
            flush=True,
        )
        for alarm in row.get("alarms", []):
            self.note(f"ALARM  step {row['step']}, {row['arm']}: {alarm}")
