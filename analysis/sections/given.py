"""What the section of a figure, table or ablation is made of, and how its pictures are drawn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.figures import figure
from analysis.record import Record, Rows
from analysis.report import Line, Ordering, Section, Size, Table

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8C8C8C"


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
        """Draw a picture inside the `with` block, in the axes that it gives: one, or an array."""
        with figure(self.folder / name, panels) as axes:
            yield axes
        self.drawn.append(name)

    @staticmethod
    def plot_steps(axes: Any, rows: Rows, key: str, by: str = "", **options: Any) -> None:
        """Plot a metric by training step, divided by the metric `by` if there is one. options: of Axes.plot."""
        axes.plot([row["step"] for row in rows], [row[key] / row[by] if by else row[key] for row in rows], **options)

    def line(self, what: str, plotted: str = "", claimed: str = "", replay: str = "", engine: str = "") -> None:
        """Add a line (report.Line)."""
        self.lines.append(Line(what, plotted, claimed, replay, engine))

    def claim(self, claim: str, met: bool | None, evidence: str, size: Size | None = None) -> None:
        """Add a claim (report.Ordering)."""
        self.claims.append(Ordering(claim, met, evidence, size))

    def section(
        self, setting: str, differs: str = "", table: Table | None = None, more_tables: Sequence[Table] = ()
    ) -> Section:
        """Return the section of what was added."""
        return Section(self.title, setting, self.lines, differs, self.drawn, table, self.claims, more_tables)
