"""The parts that all HTML pages share: their style, tables, boxes and pictures. Each page is one file, no scripts."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

CSS = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;"
    "overflow-wrap:break-word}.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}"
    "td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}.wide td,.wide th{white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}.advice{font-size:1.2rem;padding:1rem;background:#eef4fb;"
    "border-left:4px solid #0072B2}img,svg{max-width:100%;height:auto}li{color:#555}h1{line-height:1.2}"
    "pre{background:#f4f4f4;padding:1rem;overflow-x:auto}figure{margin:1rem 0}"
    "@media(max-width:40rem){td,th{padding:.3rem .35rem;font-size:.85rem}}"
)


def document(title: str, body: Sequence[str], css: str = "") -> str:
    """Return a whole page. body: parts in HTML, below the title. css: rules that this page adds to CSS."""
    return "\n".join(
        [
            "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' content='width=device-width'>",
            f"<title>{html.escape(title)}</title><style>{CSS}{css}</style><h1>{html.escape(title)}</h1>",
            *body,
            "</html>",
        ]
    )


def box(lines: Sequence[str]) -> str:
    """Return lines in the box that opens a page."""
    return f"<p class='advice'>{'<br>'.join(map(html.escape, lines))}</p>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], classes: Mapping[str, str] | None = None) -> str:
    """Return a table, which scrolls sideways where the page is too narrow. classes: text of a cell -> its CSS class."""
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    attributes = {cell: f" class='{name}'" for cell, name in (classes or {}).items()}
    lines = [
        "".join(f"<td{attributes.get(cell, '')}>{html.escape(cell)}</td>" for cell in row).join(("<tr>", "</tr>"))
        for row in rows
    ]
    return f"<div class='wide'><table><tr>{cells}</tr>{''.join(lines)}</table></div>"


def picture(png: Path | bytes, title: str) -> str:
    """Return a figure that embeds a PNG file."""
    data = base64.b64encode(png if isinstance(png, bytes) else png.read_bytes()).decode()
    return f"<figure><img alt='{html.escape(title, quote=True)}' src='data:image/png;base64,{data}'></figure>"
