"""Reports that put published numbers beside ours, one section for each figure or table, and verdicts on claims.

`markdown` writes a report as text, `write_page` as one page of HTML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis import page
from analysis.figures import colours_of, figure

CLOSE = 1.5  # a size is met if ours and the paper's differ by at most this factor
HEADER = ("claim", "paper", "ours", "ours / paper", "verdict", "evidence from our runs")
MET, NOT_MET, UNDECIDED, NO_SIZE = "order and size met", "NOT MET", "cannot tell", "order met"


@dataclass(frozen=True)
class Size:
    """The paper's value of a claimed quantity and ours, in `unit`; None where one is not known."""

    paper: float | None = None
    ours: float | None = None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """Our value divided by the paper's; None if one of them is not known."""
        return self.ours / self.paper if self.ours is not None and self.paper else None


@dataclass(frozen=True)
class Ordering:
    """A claim that our runs should confirm: one that a paper's figure makes, or the claim that arms train identically.

    met: whether our runs confirm the claim; None if they cannot decide. evidence: the numbers behind the verdict.
    """

    claim: str
    met: bool | None
    evidence: str
    size: Size = Size()

    def __str__(self) -> str:
        numbers = f"paper {self.cells[1]}, ours {self.cells[2]}; " if self.size.ratio is not None else ""
        return f"{self.verdict}: {self.claim} ({numbers}{self.evidence})"

    @property
    def size_met(self) -> bool | None:
        """Whether the order is met and our value is within a factor of CLOSE of the paper's; None without values."""
        if self.size.ratio is None or self.met is None:
            return None
        return self.met and 1 / CLOSE <= self.size.ratio <= CLOSE

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if not self.met:
            return UNDECIDED if self.met is None else NOT_MET
        if self.size.ratio is None:
            return NO_SIZE
        return MET if self.size_met else f"order met, size {self.size.ratio:.2g} times the paper's"

    @property
    def cells(self) -> list[str]:
        """The cells of the claim's row, for the columns of HEADER."""
        size, ratio = self.size, self.size.ratio
        shown = ["" if value is None else f"{value:.3g}{size.unit}" for value in (size.paper, size.ours)]
        return [self.claim, *shown, "" if ratio is None else f"{ratio:.2f}", self.verdict, self.evidence]


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * share:.1f} %"


def summary(orderings: Sequence[Ordering]) -> list[str]:
    """Return the lines of the box that opens a report: of how many claims the order and, where the paper gives numbers,
    the size are met."""
    sized = [each for each in orderings if each.size_met is not None]
    met = sum(each.met is True for each in orderings)
    undecided = sum(each.met is None for each in orderings)
    order = f"Order: {met} of {len(orderings)} claims are met"
    lines = [order + (f", and {undecided} cannot be told from these runs." if undecided else ".")]
    if sized:
        lines.append(
            f"Size: of the {len(sized)} claims for which the paper gives a number, "
            f"{sum(bool(each.size_met) for each in sized)} are met within a factor of {CLOSE:g}."
        )
    return lines


VERDICT_CLASSES = {MET: "met", NO_SIZE: "order", NOT_MET: "not"}  # verdict -> its CSS class (page.html)


@dataclass(frozen=True)
class Line:
    """One quantity of a section: the paper's values and our values. "" stands for no value."""

    what: str
    plotted: str = ""  # what the paper's figure shows
    claimed: str = ""  # what the paper's text says
    replay: str = ""  # our value, simulated at the paper's scale
    engine: str = ""  # our value, from the real engine with the small policy


@dataclass(frozen=True)
class Table:
    """A table of a report: rows of text cells under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def by_columns(columns: Mapping[str, Sequence[str]]) -> Table:
    """Return a table. columns: header -> its cells."""
    return Table(list(columns), list(zip(*columns.values(), strict=True)))


@dataclass(frozen=True)
class Section:
    """One section of a report: a figure or table of the paper, or an ablation."""

    title: str
    setting: str  # a description of our run
    lines: Sequence[Line] = ()
    differs: str = ""  # differences from the paper's result, and the reason that we suppose
    figures: Sequence[str] = ()  # paths of PNG files, relative to the report
    table: Table | None = None
    orderings: Sequence[Ordering] = ()
    more_tables: Sequence[Table] = ()

    def tables(self) -> list[Table]:
        """The tables that the section shows: its `lines`, `table`, `more_tables`, and its orderings."""
        header = ("", "paper (plotted)", "paper (claimed)", "ours (replay)", "ours (real engine, small policy)")
        lines = [filled(header, [list(vars(line).values()) for line in self.lines])] if self.lines else []
        own = [self.table] if self.table else []
        return [*lines, *own, *self.more_tables, *([claims(self.orderings)] if self.orderings else [])]


def claims(orderings: Sequence[Ordering]) -> Table:
    """Return the table of claims: the paper's value, ours, their ratio and the verdict."""
    return filled(HEADER, [each.cells for each in orderings])


def filled(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table without the columns that would be empty. The first column stays."""
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] for row in rows)]
    return Table([header[i] for i in kept], [[row[i] for i in kept] for row in rows])


def markdown(title: str, preface: str, sections: Sequence[Section]) -> str:
    """Return a report as Markdown text."""
    parts = [f"# {title}", preface]
    for section in sections:
        parts += [f"## {section.title}", section.setting]
        parts += [markdown_table(table) for table in section.tables()]
        if section.differs:
            parts.append(f"**Where our result differs.** {section.differs}")
        parts += [f"![{section.title}]({figure})" for figure in section.figures]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: Table) -> str:
    """Return a table as Markdown. Vertical bars inside cells are escaped."""
    rows = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def write_page(
    path: Path,
    title: str,
    box: Sequence[str],
    preface: Sequence[str],
    overview: Table | None,
    chapters: Mapping[str, Sequence[Section]],
) -> None:
    """Write a report as one page, with every figure inside it.

    box: the lines of the box at the top. preface: paragraphs. overview: the table at the top, or None. chapters:
    heading -> sections. Their figure paths are relative to the page.
    """
    parts: list[page.Part] = [("text", line) for line in preface]
    parts += [("links", list(chapters))] if len(chapters) > 1 else []
    parts += [("table", (overview.header, *overview.rows))] if overview else []
    for name, sections in chapters.items():
        parts.append(("chapter", name))
        for section in sections:
            parts += [("section", section.title), ("text", section.setting)]
            parts += [("table", (table.header, *table.rows)) for table in section.tables()]
            parts += [("differs", section.differs)] if section.differs else []
            parts += [page.picture(path.parent / figure, section.title) for figure in section.figures]
    orderings = [each for sections in chapters.values() for section in sections for each in section.orderings]
    page.write(path, title, box, parts, classes=verdict_classes(orderings))


def verdict_classes(orderings: Sequence[Ordering]) -> dict[str, str]:
    """Return verdict -> CSS class, for the verdicts of these claims. A size that is not met has a class of its own."""
    return {each.verdict: VERDICT_CLASSES.get(each.verdict, "size") for each in orderings if each.met is not None}


def curves(path: Path, lines: Mapping[str, tuple[Any, Any]], x: str, y: str, title: str) -> str:
    """Draw named curves. Returns the file's name.

    lines: name -> (xs, ys). A curve whose name ends in "(paper)" is dashed. x, y: the labels of the axes.
    """
    pairs = {name: name.removesuffix(" (paper)") for name in lines}  # a curve and the paper's of that name: one colour
    colour = colours_of(list(dict.fromkeys(pairs.values())))
    with figure(path, size=(9, 4.2)) as axes:
        for name, (xs, ys) in lines.items():
            form = "--" if name.endswith("(paper)") else "-"
            axes.plot(xs, ys, linestyle=form, color=colour[pairs[name]], label=name, linewidth=1.6)
        axes.set(xlabel=x, ylabel=y, title=title)
        if all(np.min(ys) >= 0 for _, ys in lines.values()):
            axes.set_ylim(bottom=0)
        axes.figure.legend(loc="outside right upper", fontsize=9)  # beside the curves, which may leave no room
    return path.name
