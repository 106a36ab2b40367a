"""Write a report as one self-contained HTML page."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis import page
from analysis.orderings import MET, NO_SIZE, NOT_MET, Ordering
from analysis.report import Section, Table
from das.general.files import write_text

REPORT_CSS = (
    "body{max-width:75rem}table{margin:1rem 0;font-size:.9rem}td,th{text-align:left}.wide td{white-space:normal}"
    "nav li{display:inline-block;margin-right:1rem}h2{margin-top:3rem;border-top:2px solid #ddd;padding-top:1rem}"
    # Blue, orange and vermilion can be told apart with every kind of colour vision; the words say the same.
    ".met{color:#00527f;font-weight:bold}.order{color:#0072B2}.size{color:#8a5a00;background:#fff3d6}"
    ".not{color:#fff;background:#b3400e;font-weight:bold}li{color:inherit}"
)
VERDICT_CLASSES = {MET: "met", NO_SIZE: "order", NOT_MET: "not"}  # verdict -> its CSS class


def write(
    path: Path,
    title: str,
    box: Sequence[str],
    preface: Sequence[str],
    overview: Table | None,
    chapters: Mapping[str, Sequence[Section]],
) -> None:
    """Write the page, with every figure inside it.

    box: the lines of the box at the top. preface: paragraphs. overview: the table at the top, or None. chapters:
    heading -> sections. Their figure paths are relative to the page.
    """
    sections = [section for of_chapter in chapters.values() for section in of_chapter]
    classes = verdict_classes([ordering for section in sections for ordering in section.orderings])
    parts = [page.box(box), *(f"<p>{html.escape(line)}</p>" for line in preface)]
    if len(chapters) > 1:
        links = "".join(f"<li><a href='#{i}'>{html.escape(name)}</a></li>" for i, name in enumerate(chapters))
        parts.append(f"<nav><ul>{links}</ul></nav>")
    if overview is not None:
        parts.append(page.table(overview.header, overview.rows, classes))
    for i, (name, of_chapter) in enumerate(chapters.items()):
        parts.append(f"<h2 id='{i}'>{html.escape(name)}</h2>")
        for section in of_chapter:
            parts.append(f"<h3>{html.escape(section.title)}</h3><p>{html.escape(section.setting)}</p>")
            parts += [page.table(table.header, table.rows, classes) for table in section.tables()]
            if section.differs:
                parts.append(f"<p><b>Where our result differs.</b> {html.escape(section.differs)}</p>")
            parts += [page.picture(path.parent / figure, section.title) for figure in section.figures]
    write_text(path, page.document(title, parts, REPORT_CSS))


def verdict_classes(orderings: Sequence[Ordering]) -> dict[str, str]:
    """Return verdict -> CSS class, for the verdicts of these claims. A size that is not met has a class of its own."""
    return {each.verdict: VERDICT_CLASSES.get(each.verdict, "size") for each in orderings if each.met is not None}
