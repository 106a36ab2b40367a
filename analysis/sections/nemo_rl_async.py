"""NeMo RL, asynchronous training: how long a step waits for generation, by lag, with and without drafts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from analysis.figures import colours_of, figure
from analysis.orderings import Ordering
from analysis.overlap import exposed_times, hidden_share
from analysis.report import Line, Section, Table
from analysis.sections.shared import Rows, is_identical, policy_note, rows

ARMS = ("none", "das")
TARGET = 0.8  # with lag 1, this share of the shorter of generation and training should run beside the other
HEADER = (
    "lag",
    "arm",
    "generation s",
    "training s",
    "exposed s",
    "predicted",
    "step s",
    "predicted",
    "hidden of the shorter",
)


def section(title: str, runs: Mapping[str, Path], published: Mapping[str, Any], folder: Path) -> Section:
    """Make the section about asynchronous training. Its table has one row for each lag and arm."""
    paper = published["nemo_async"]["data"]
    by_lag = {int(label.removeprefix("lag_")): run for label, run in runs.items()}
    measured = {(lag, arm): _times(rows(run, arm)) for lag, run in by_lag.items() for arm in ARMS}
    alone = {arm: measured[0, arm] for arm in ARMS}
    _draw(measured, folder / "async.png")
    none, das = (measured[1, arm] for arm in ARMS)
    none_expected, das_expected = (alone[arm].at_lag(1) for arm in ARMS)
    same = [is_identical(run) for run in by_lag.values()]
    return Section(
        title,
        f"{policy_note(by_lag[0])} The engine has a process and a core of its own; the first step, which has nothing "
        "to hide behind, is left out. Generation and training are measured while the other runs beside them. Replay, "
        "and predicted: by the queue of rollouts alone, from the times of our engine at lag 0.",
        [
            Line(
                "lag 1: exposed generation, none",
                f"{paper['exposed_generation_s']['ar']} s",
                replay=_s(none_expected.exposed),
                engine=_s(none.exposed),
            ),
            Line(
                "lag 1: exposed generation, das",
                f"{paper['exposed_generation_s']['sd']} s",
                replay=_s(das_expected.exposed),
                engine=_s(das.exposed),
            ),
            Line(
                "lag 1: step, none", f"{paper['step_s']['ar']} s", replay=_s(none_expected.step), engine=_s(none.step)
            ),
            Line("lag 1: step, das", f"{paper['step_s']['sd']} s", replay=_s(das_expected.step), engine=_s(das.step)),
            Line(
                "lag 1: step speedup",
                f"{paper['step_speedup']}x",
                replay=f"{none_expected.step / das_expected.step:.2f}x",
                engine=f"{none.step / das.step:.2f}x",
            ),
        ],
        "The paper trains on 4 nodes and generates on 12, an 8B policy with thousands of tokens a response; here it "
        "is a core each, and training takes a larger share of the step.",
        figures=["async.png"],
        table=Table(HEADER, [_row(lag, arm, times, alone[arm]) for (lag, arm), times in measured.items()]),
        orderings=[
            Ordering(
                "drafts change no bit at any lag",
                all(same),
                f"{sum(same)} of {len(same)} lags: das is identical to none",
            ),
            Ordering(
                "lag 1: less generation is exposed with drafts than without",
                das.exposed < none.exposed,
                f"{_s(das.exposed)} with das, {_s(none.exposed)} with none",
                100 * (1 - paper["exposed_generation_s"]["sd"] / paper["exposed_generation_s"]["ar"]),
                100 * (1 - das.exposed / none.exposed) if none.exposed else None,
                " % less",
            ),
            Ordering(
                f"lag 1 hides at least {TARGET:.0%} of the shorter of generation and training",
                none.hidden >= TARGET,
                f"none {none.hidden:.0%}, das {das.hidden:.0%}",
            ),
        ],
    )


@dataclass(frozen=True)
class Times:
    """The times of one arm's steps, in seconds. All means leave out the first step."""

    rollout_s: Sequence[float]
    exposed_s: Sequence[float]
    train_s: Sequence[float]

    @property
    def exposed(self) -> float:
        """The mean seconds that the trainer waited for a rollout."""
        return mean(self.exposed_s[1:])

    @property
    def step(self) -> float:
        return self.exposed + mean(self.train_s[1:])

    @property
    def hidden(self) -> float:
        """How much of the shorter activity (generation or training) ran beside the other one, as a share."""
        return hidden_share(self.exposed_s, self.rollout_s, self.train_s)

    def at_lag(self, lag: int) -> "Times":
        """Return the predicted times of the same work at another lag. The queue of rollouts is simulated. This object
        must hold times at lag 0."""
        return Times(self.exposed_s, exposed_times(self.exposed_s, self.train_s, lag), self.train_s)


def _times(steps: Rows) -> Times:
    exposed_s = [row["exposed_s"] for row in steps]
    train_s = [row["step_s"] - exposed for row, exposed in zip(steps, exposed_s, strict=True)]
    return Times([row["rollout_s"] for row in steps], exposed_s, train_s)


def _row(lag: int, arm: str, times: Times, alone: Times) -> list[str]:
    """Return a row of the table. alone: the arm's times at lag 0, at which rollouts and training take turns."""
    predicted = alone.at_lag(lag)
    return [
        str(lag),
        arm,
        f"{mean(times.rollout_s[1:]):.2f}",
        f"{mean(times.train_s[1:]):.2f}",
        f"{times.exposed:.2f}",
        f"{predicted.exposed:.2f}",
        f"{times.step:.2f}",
        f"{predicted.step:.2f}",
        f"{times.hidden:.0%}",
    ]


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _draw(measured: Mapping[tuple[int, str], Times], path: Path) -> None:
    """Draw, left: exposed generation (for which the trainer waits) by lag. Right: time of a step by lag."""
    lags = sorted({lag for lag, _ in measured})
    colour = colours_of(ARMS)
    with figure(path, panels=2) as (left, right):
        for arm in ARMS:
            left.plot(lags, [measured[lag, arm].exposed for lag in lags], "o-", color=colour[arm], label=arm)
            right.plot(lags, [measured[lag, arm].step for lag in lags], "o-", color=colour[arm], label=arm)
        left.set(xlabel="lag, training steps", ylabel="exposed generation, s a step", ylim=(0, None))
        right.set(xlabel="lag, training steps", ylabel="time of a step, s", ylim=(0, None))
        left.legend()
