"""Write compared runs as one self-contained HTML page. It has the panels of a W&B report, but needs no account."""

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import panels

CSS = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.3rem .8rem;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}pre{background:#f4f4f4;padding:1rem;overflow-x:auto}"
    "svg{max-width:100%;height:auto}"
)


def write(
    path: Path,
    table: Sequence[Sequence[str]],
    lines: Sequence[str],
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Write the page.

    table: the first line is the header. lines: the report of differences. runs: name -> rows of metrics.jsonl.
    """
    header, *rows = table
    picture = io.StringIO()
    panels.draw(runs, panels.PANELS, picture, "svg")
    svg = picture.getvalue()
    path.write_text(
        "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>Curves</title><style>{CSS}</style><h1>Curves: {html.escape(', '.join(runs))}</h1><table><tr>"
        + "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        + "</tr>"
        + "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        + f"</table><h2>What differs</h2><pre>{html.escape(chr(10).join(lines))}</pre>"
        f"<h2>Panels</h2>{svg[svg.index('<svg') :]}</html>"
    )
