"""What the section of a figure, table or ablation is made of, and how its pictures are drawn."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.figures import figure
from analysis.orderings import Ordering
from analysis.record import Record, Rows
from analysis.report import Line, Section, Table

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#8C8C8C"


@dataclass(frozen=True)
class Given:
    """The runs of an experiment by their labels, all published numbers (experiments/papers/published.json), and the
    folder of the pictures."""

    title: str
    runs: Mapping[str, Record]
    published: Mapping[str, Any]
    folder: Path
    drawn: list[str] = field(default_factory=list)  # names of the pictures so far

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

    def section(
        self,
        setting: str,
        differs: str = "",
        lines: Sequence[Line] = (),
        table: Table | None = None,
        orderings: Sequence[Ordering] = (),
        more_tables: Sequence[Table] = (),
    ) -> Section:
        """Return the section, with the pictures that were drawn."""
        return Section(self.title, setting, lines, differs, list(self.drawn), table, orderings, more_tables)
