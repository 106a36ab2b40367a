"""What the section of a figure, table or ablation is made of: the files of its runs (Record), quantities over rows of
metrics.jsonl, numbers as text; and how lines, claims and pictures are added to it (Given).

A pass is a target pass; the DAS paper calls it a verification round. A cycle is the papers' word for a target pass that
verifies a draft of a request.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from analysis import read
from analysis.arms import WEIGHTS
from analysis.figures import figure
from analysis.identity import differing
from analysis.report import Line, Ordering, Section, Size, Table, percent

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8C8C8C"
PLOTTED = {"none": "verl", "das": "das", "das_unlimited": "das_unlimited"}  # arm -> its name in published.json
Rows = list[dict[str, Any]]


class Record:
    """The files of one run, each read once. Of a comparison, record["das"] is the rows of the arm das, one for each
    step."""

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

    @property
    def arms(self) -> list[str]:
        """The arms of a comparison. The first is the baseline."""
        return list(self.result["arms"])

    def timeline(self, arm: str, step: int) -> dict[str, Any]:
        """The decode passes of an arm's step."""
        return read.timeline(self.folder / "arms" / arm, step)

    def responses(self, arm: str) -> Iterator[tuple[int, str, list[int]]]:
        """The epoch, the problem and the tokens of each response of an arm."""
        for row in self[arm]:
            for response in read.rollout(self.folder / "arms" / arm, row["step"]):
                yield row["epoch"], response["problem_id"], response["response_ids"]

    def speedup(self, arm: str, key: str = "rollout_s") -> float:
        """Time of the arm `none` / time of this arm, as the median over steps. key: name of the metric, in seconds.

        A ratio of sums would depend too much on a few steps that were slowed by other work on the machine.
        """
        return median(plain[key] / drafting[key] for plain, drafting in zip(self["none"], self[arm], strict=True))

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
        problems = responses * self.config["engine"]["processes"] // trainer["num_generations"]
        return (
            f"Policy {self.config['policy']['name']}, data {self.config['data']['name']}; {steps} steps of {problems} "
            f"problems x {trainer['num_generations']} responses of at most {trainer['max_completion_length']} tokens."
        )


# ---- quantities, and numbers as text ----


def total(rows: Rows, key: str) -> float:
    """Return a metric's sum over steps."""
    return float(sum(row[key] for row in rows))


def per(rows: Rows, key: str, by: str) -> float:
    """Return a metric per another, of their sums over steps; nan if the other is 0, as without drafts."""
    return total(rows, key) / total(rows, by) if total(rows, by) else float("nan")


def change(ratio: float) -> str:
    """Return a ratio of times as a signed percentage: 0.9 gives "-10.0 %"."""
    return f"{100 * (ratio - 1):+.1f} %"


def numbers(values: Sequence[float], digits: int = 2) -> str:
    """Return numbers as text, with slashes between them and a dash for a nan."""
    return " / ".join("-" if value != value else f"{value:.{digits}f}" for value in values)


def arrow(values: Sequence[float]) -> str:
    """Return numbers as text, with arrows between them."""
    return " → ".join(f"{value:.2f}" for value in values)


def named(values: Mapping[Any, float], form: str = "{} {:.2f}") -> str:
    """Return names with their numbers as text. form: how one of them is written."""
    return ", ".join(form.format(name, value) for name, value in values.items())


def listed(values: Sequence[Any], form: str = "{}") -> str:
    """Return values as text, with commas between them."""
    return ", ".join(form.format(value) for value in values)


def reduction(rows: Rows, others: Rows) -> float:
    """Return the share of rollout time that an arm saves against another: 1 - time / the other's time."""
    return 1 - total(rows, "rollout_s") / total(others, "rollout_s")


def plotted_reduction(paper: Mapping[str, Any], arm: str, other: str, last: int) -> float | None:
    """Return the share of rollout time that `arm` saves against `other` in the paper's curves over steps 1..last; None
    if a curve is shorter."""
    seconds, others = (paper["arms"][PLOTTED[name]]["seconds"][:last] for name in (arm, other))
    return float(1 - sum(seconds) / sum(others)) if len(seconds) == len(others) == last else None


# ---- the section ----


@dataclass(frozen=True)
class Given:
    """The runs of an experiment by their labels, all published numbers (experiments/papers/published.json), and the
    folder of the pictures."""

    title: str
    runs: Mapping[str, Record]
    published: Mapping[str, Any]
    folder: Path
    # What the section has so far: names of pictures, lines, claims.
    drawn: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    claims: list[Ordering] = field(default_factory=list)

    @property
    def run(self) -> Record:
        """The first run."""
        return next(iter(self.runs.values()))

    def paper(self, key: str) -> Any:
        """Return the numbers that a paper published."""
        return self.published[key]["data"]

    @contextmanager
    def picture(self, name: str, panels: int = 1) -> Iterator[Any]:
        """Draw a picture inside the `with` block, in the axes that it gives: one, or an array. What has a label is in a
        legend."""
        with figure(self.folder / name, panels) as axes:
            yield axes
            for each in [axes] if panels == 1 else axes:
                if labels := each.get_legend_handles_labels()[1]:
                    each.legend(fontsize=10 if len(labels) < 4 else 7)
        self.drawn.append(name)

    @staticmethod
    def plot_steps(axes: Any, rows: Rows, key: str, by: str = "", **options: Any) -> None:
        """Plot a metric by training step, divided by the metric `by` if there is one. options: of Axes.plot."""
        axes.plot([row["step"] for row in rows], [row[key] / row[by] if by else row[key] for row in rows], **options)

    def line(self, what: str, plotted: str = "", claimed: str = "", replay: str = "", engine: str = "") -> None:
        """Add a line (report.Line)."""
        self.lines.append(Line(what, plotted, claimed, replay, engine))

    def claim(self, claim: str, met: bool | None, evidence: str, size: tuple[Any, Any, str] = (None, None, "")) -> None:
        """Add a claim (report.Ordering). size: the paper's value, ours, and the unit (report.Size)."""
        self.claims.append(Ordering(claim, met, evidence, Size(*size)))

    def reductions(
        self,
        run: Record,
        paper: Mapping[str, Any],
        last: int,
        claimed: str,
        arms: tuple[str, str] = ("das", "none"),
        of: str = "",
    ) -> None:
        """Add lines with the rollout time that the first of two arms saves against the other: ours over all steps and
        from epoch 2 on, the paper's over steps 1..last.

        claimed: by the paper's text. of: what the lines begin with.
        """
        arm, other = arms
        rows, others = run[arm], run[other]
        plotted = plotted_reduction(paper, arm, other, last)
        plain = "" if plotted is None else percent(plotted)
        what = f"{of}{arm} against {other}: reduction of rollout time"
        self.line(what, plain, claimed, engine=percent(reduction(rows, others)))
        if max(row["epoch"] for row in rows):
            later = reduction([row for row in rows if row["epoch"]], [row for row in others if row["epoch"]])
            self.line(f"{of}the same from the second epoch on", engine=percent(later))
        if other != "stock" and "stock" in run.arms:
            saved = percent(reduction(rows, run["stock"]))
            self.line(f"{of}{arm} against stock: reduction of rollout time", engine=saved)

    def saves_time(
        self, claim: str, run: Record, paper: Mapping[str, Any], last: int, arms: tuple[str, str] = ("das", "none")
    ) -> None:
        """Add the claim that rollouts of the first of two arms take less time than the other's, with the paper's
        reduction over its steps 1..last and ours over all steps."""
        arm, other = arms
        ours, plotted = reduction(run[arm], run[other]), plotted_reduction(paper, arm, other, last)
        shorter = [row["rollout_s"] < its["rollout_s"] for row, its in zip(run[arm], run[other], strict=True)]
        evidence = f"shorter in {sum(shorter)} of {len(shorter)} steps"
        self.claim(claim, ours > 0, evidence, (None if plotted is None else 100 * plotted, 100 * ours, " % less"))

    def same_training(self, run: Record) -> None:
        """Add the paper's claim about equal reward curves, in the strict form of equal bits."""
        self.claim("training is the same with and without speculation", run.identical, run.identity)

    def section(
        self, setting: str, differs: str = "", table: Table | None = None, more_tables: Sequence[Table] = ()
    ) -> Section:
        """Return the section of what was added."""
        return Section(self.title, setting, self.lines, differs, self.drawn, table, self.claims, more_tables)
