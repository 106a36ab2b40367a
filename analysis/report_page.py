"""Write a report as one self-contained HTML page."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis.advice_page import CSS
from analysis.report import Section, Table

REPORT_CSS = (
    "table{margin:1rem 0;font-size:.9rem}td,th{text-align:left}nav li{display:inline-block;margin-right:1rem}"
    "h2{margin-top:3rem;border-top:2px solid #ddd;padding-top:1rem}"
    ".met{color:#00734d}.not{color:#b3400e;font-weight:bold}"
    "figure{margin:1rem 0}li{color:inherit}"
)
VERDICT_CLASSES = {"met": "met", "NOT MET": "not"}  # text of a cell -> its CSS class


def write(
    path: Path, title: str, preface: Sequence[str], overview: Table, chapters: Mapping[str, Sequence[Section]]
) -> None:
    """Write the page, with every figure inside it.

    preface: paragraphs. overview: the table at the top. chapters: heading -> sections. Their figure paths are relative
    to the page.
    """
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
        f"<title>{html.escape(title)}</title><style>{CSS}{REPORT_CSS}</style><h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in preface),
        "<nav><ul>" + "".join(f"<li><a href='#{i}'>{html.escape(name)}</a></li>" for i, name in enumerate(chapters)),
        "</ul></nav>",
        html_table(overview),
    ]
    for i, (name, sections) in enumerate(chapters.items()):
        parts.append(f"<h2 id='{i}'>{html.escape(name)}</h2>")
        for section in sections:
            parts.append(f"<h3>{html.escape(section.title)}</h3><p>{html.escape(section.setting)}</p>")
            parts += [html_table(table) for table in section.tables()]
            if section.differs:
                parts.append(f"<p><b>Where our result differs.</b> {html.escape(section.differs)}</p>")
            parts += [html_image(path.parent / figure, section.title) for figure in section.figures]
    path.write_text("\n".join([*parts, "</html>"]))


def html_table(table: Table) -> str:
    """Return a table as HTML, with coloured verdicts."""
    header = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.header)
    rows = []
    for row in table.rows:
        cells = "".join(f"<td class='{VERDICT_CLASSES.get(cell, '')}'>{html.escape(cell)}</td>" for cell in row)
        rows.append(f"<tr>{cells}</tr>")
    return f"<table><tr>{header}</tr>{''.join(rows)}</table>"


def html_image(path: Path, title: str) -> str:
    """Return an HTML figure that embeds a PNG file."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<figure><img alt='{html.escape(title, quote=True)}' src='data:image/png;base64,{data}'></figure>"
