"""Reports that set published numbers beside ours, a section a figure or table: Markdown, and one page of HTML."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Line:
    """One quantity. plotted, claimed: the paper's; replay, engine: ours; "" where there is none."""

    what: str
    plotted: str = ""
    claimed: str = ""
    replay: str = ""
    engine: str = ""


@dataclass(frozen=True)
class Ordering:
    """Something the paper's figure says that ours should say too. met: None where the runs cannot tell."""

    claim: str
    met: bool | None
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.claim} ({self.evidence})"

    @property
    def verdict(self) -> str:
        return {True: "met", False: "NOT MET", None: "cannot tell"}[self.met]


@dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A figure or table of the paper, or an ablation. differs: where ours differs, and why we think so."""

    title: str
    setting: str
    lines: Sequence[Line] = ()
    differs: str = ""
    figures: Sequence[str] = field(default=())
    table: Table | None = None
    orderings: Sequence[Ordering] = ()

    def tables(self) -> list[Table]:
        """What is to be shown as tables: the numbers beside the paper's, further ones, and the orderings."""
        found = []
        if self.lines:
            columns = [[x.what, x.plotted, x.claimed, x.replay, x.engine] for x in self.lines]
            header = ["", "paper (plotted)", "paper (claimed)", "ours (replay)", "ours (real engine, small policy)"]
            full = [i for i in range(5) if i == 0 or any(row[i] for row in columns)]
            found.append(Table([header[i] for i in full], [[row[i] for i in full] for row in columns]))
        if self.table:
            found.append(self.table)
        if self.orderings:
            found.append(
                Table(["the paper says", "", "ours"], [[o.claim, o.verdict, o.evidence] for o in self.orderings])
            )
        return found


def markdown(title: str, preface: str, sections: Sequence[Section]) -> str:
    """The whole report."""
    parts = [f"# {title}", preface]
    for section in sections:
        parts += [f"## {section.title}", section.setting]
        parts += [markdown_table(table) for table in section.tables()]
        if section.differs:
            parts.append(f"**Where ours differs.** {section.differs}")
        parts += [f"![{section.title}]({figure})" for figure in section.figures]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """A table; bars inside cells are escaped."""
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def curves(path: Path, lines: Mapping[str, tuple[Any, Any]], x: str, y: str, title: str) -> str:
    """Draw named curves; dashed where the name ends in "(paper)". Returns the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 3.8), layout="constrained")
    for name, (xs, ys) in lines.items():
        axes.plot(xs, ys, "--" if name.endswith("(paper)") else "-", label=name, linewidth=1.4)
    axes.set(xlabel=x, ylabel=y, title=title)
    if all(np.min(ys) >= 0 for _, ys in lines.values()):
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize=8)  # beside the curves: many of them leave no room between
    figure.savefig(path)
    plt.close(figure)
    return path.name


def points(path: Path, xs: Any, ys: Any, x: str, y: str, title: str) -> str:
    """Draw points, and the line where both are equal. Returns the file's name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.8), layout="constrained")
    axes.plot(xs, ys, "o", markersize=4, alpha=0.7)
    axes.axline((0, 0), slope=1, color="0.6", linewidth=1)
    axes.set(xlabel=x, ylabel=y, title=title, xlim=(0, None), ylim=(0, None))
    figure.savefig(path)
    plt.close(figure)
    return path.name
