"""The one writer of HTML pages, by the template page.html. Each page is one file, without scripts."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from das.general.files import write_text

# A kind of part (page.html lists them), and what it shows. Of a table: its header and its rows.
Part = tuple[str, Any]


def write(
    path: Path,
    title: str,
    box: Sequence[str],
    parts: Sequence[Part],
    width: int = 75,
    classes: Mapping[str, str] | None = None,
) -> None:
    """Write a page. box: the lines of the box that opens it. width: of the text, in rem. classes: of a report, the CSS
    classes of cells by their text."""
    files = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=files, autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    given = {"title": title, "box": box, "parts": parts, "width": width}
    page = template.get_template("page.html").render(given, classes=classes or {}, report=classes is not None)
    write_text(path, page)


def picture(png: Path | bytes, title: str) -> Part:
    """Return a picture that embeds a PNG file."""
    data = base64.b64encode(png if isinstance(png, bytes) else png.read_bytes()).decode()
    return "picture", (title, data)
