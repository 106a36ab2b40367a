"""Print progress: one line for each step of each arm, or a verdict on each step, with the time that is left. A terminal
also shows a bar. The output of libraries goes to a log. A `Barrier` passes a training's steps on to it."""

import atexit
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from das.general.side_output import lasting, listen_to_stages, side_output, stage
from experiments.run.errors import printable
from experiments.run.processes import output_into

SAY_S = 10.0  # seconds between two lines about a start that takes long


class Progress:
    """Prints progress lines. steps: training steps of each arm. arms: number of arms that report.

    terminal: the stream for the lines; None: standard output. Tasks that redirect their output replace it. Only
    terminals get colours.
    verdict: takes each row, and returns the verdict of a step after its last arm; its line then stands in place of the
    lines of the arms. None: each row has a line.
    """

    def __init__(
        self,
        steps: int,
        arms: int = 1,
        terminal: TextIO | None = None,
        verdict: Callable[[dict[str, Any]], str | None] | None = None,
    ):
        self.terminal = terminal or sys.stdout
        self.verdict = verdict
        self.steps = steps
        self.arms = arms
        self.total = steps * arms
        self.done = 0
        self.began: float | None = None
        self._bar: Bar | None = None
        self._now = ""

    def note(self, text: str, style: str | None = None) -> None:
        """Print a line. style: its colour on a terminal, by the name that rich gives it."""
        with self._shown():
            console = self._bar.console if self._bar is not None else Console(file=self.terminal)
            console.print(printable(text), style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)

    @contextmanager
    def _shown(self) -> Iterator[None]:
        shown = False
        with side_output("progress on the terminal"):
            yield
            shown = True
        if not shown:
            self._bar, self.terminal = None, io.StringIO()

    def resume(self, step: int) -> None:
        """Leave the first `step` steps out of the estimates of time: an earlier process has done them."""
        self.total = (self.steps - step) * self.arms

    @contextmanager
    def starting(self, who: str, log: Path) -> Iterator[None]:
        """Inside the `with` block, until the first step begins, print a line every SAY_S seconds about what is done
        now, as `stage` (das.general.side_output) or `now` says it. who: what starts in this process. log: where its
        output goes."""
        began, over = time.perf_counter(), threading.Event()
        self.now(f"{who} loads vLLM and TRL")

        def say() -> None:
            while not over.wait(SAY_S) and self.began is None:
                self.note(f"starting, {time.perf_counter() - began:.0f} s so far: {self._now} (log: {log})")

        thread = threading.Thread(target=say, name="start", daemon=True)
        thread.start()
        listen_to_stages(lambda what: self.now(f"{who} {what}"))
        try:
            yield
        finally:
            listen_to_stages(None)
            over.set()
            thread.join()

    def now(self, what: str) -> None:
        """Note what is done now, for the lines of `starting`."""
        self._now = what

    def start(self) -> None:
        """Note that the first step begins. The estimate of the time that is left ignores the time before this call."""
        self.began = time.perf_counter()
        with self._shown():
            if self.total and self.terminal.isatty():
                # No automatic refresh: rich would draw from another thread, into redirected output.
                columns = BarColumn(), MofNCompleteColumn(), TextColumn("steps")
                self._bar = Bar(
                    *columns,
                    console=Console(file=self.terminal),
                    auto_refresh=False,
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._bar.add_task("", total=self.total)
                self._bar.start()
                atexit.register(self._close_bar)  # gives the cursor back if the run ends early

    def step(self, row: dict[str, Any]) -> None:
        """Print the progress line of one finished step of one arm. row: the step's metrics."""
        if self.began is None:
            self.start()
            self.began = time.perf_counter() - row.get("step_s", row["rollout_s"])
        self.done += 1
        seconds_left = int((time.perf_counter() - self.began) / self.done * (self.total - self.done))
        if self.verdict is not None:
            verdict = None
            with side_output("the verdict on steps"):
                verdict = self.verdict(row)
            if verdict:
                self.note(f"step {row['step']:3d}/{self.steps} · {verdict} · {left(seconds_left)}")
        else:
            reward = f"reward {shown_reward(row['reward'])}  " if "reward" in row else ""
            self.note(
                f"step {row['step']:3d}/{self.steps}  {row['arm']:<13s} {reward}rollout {row['rollout_s']:6.2f} s  "
                f"tokens/pass {row['tokens_per_pass']:5.2f}  longest {row['length_max']:5d}  {left(seconds_left)}"
            )
        for each in row.get("eval", []):
            accuracy = "  ".join(f"pass@{k} {value:.3f}" for k, value in each["pass_at_k"].items())
            self.note(f"eval {each['step']:3d}/{self.steps}  {row['arm']:<13s} {accuracy}  {each['eval_s']:.1f} s")
        for alarm in row.get("alarms", []):
            self.note(f"ALARM  step {row['step']}, {row['arm']}: {alarm}", style="bold red")
        with self._shown():
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self.done, refresh=True)
                if self.done == self.total:
                    self._close_bar()

    def _close_bar(self) -> None:
        if self._bar is not None and not self._bar.console.file.closed:
            self._bar.stop()
        self._bar = None


class Barrier:
    """Says when this process may roll out and when it may train. In each step the arms of a comparison roll out one
    after the other, so machine noise hits all of them equally.

    This class is for a run without other arms: it never waits, and passes each row of metrics to `report`.
    """

    waited_s = 0.0  # seconds spent on other arms (waiting, writing weights), which must not count as this arm's time

    def __init__(self, report: Callable[[dict[str, Any]], Any]):
        self.report = report

    def before_rollout(self) -> None:
        """Wait until no other arm rolls out or trains."""
        stage("rolls out")

    def after_rollout(self) -> None:
        """Wait until every arm has rolled out this step."""
        stage("trains")

    def after_step(self, row: dict[str, Any]) -> None:
        """Report a finished step to `report`. row: the step's metrics."""
        self.report(row)


def shown_reward(reward: float | None) -> str:
    """Return a step's mean reward as text; "none" if no response has a reward."""
    return "none " if reward is None else f"{reward:.3f}"


def left(seconds: int) -> str:
    """Return in words how much time is left."""
    return f"ETA {seconds // 60}:{seconds % 60:02d}"


@contextmanager
def quiet_into(path: Path) -> Iterator[TextIO]:
    """Send this process's output, that of C libraries included, to a log file. Yields a stream to the terminal. If
    there was no output, no file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", buffering=1) as log, lasting(os.dup(1)) as terminal, output_into(log.fileno()):
        yield terminal
    if not path.stat().st_size:
        path.unlink()
