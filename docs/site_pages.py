"""Parts of the site (make docs) that lie outside docs/: the README, and files that pages link to."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "overview.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Let links point to where their targets lie on the site. A link to a folder becomes its text."""
    outside = {site: source for source, site in PAGES.items()}
    written = outside.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(written), link[2]))
        if not (ROOT / target).is_file():
            return link[1] if (ROOT / target).is_dir() else link[0]
        site = PAGES.get(target) or target.removeprefix("docs/")
        if target not in PAGES and not target.startswith("docs/") and files.get_file_from_path(site) is None:
            files.append(File.generated(config, site, content=(ROOT / target).read_text()))
        start = posixpath.dirname(page.file.src_uri) or "."
        return f"[{link[1]}]({posixpath.relpath(site, start)}{link[3] or ''})"

    return LINK.sub(moved, markdown)
