"""Open all HTML pages of folders in headless Chromium, at two widths of the window: python tests/look.py FOLDER ...

Prints a line for each thing that is wrong: an error on the console, a file that is missing, a picture that does not
show, a page that is wider than its window. Exits with 1 if there is one. Without Chromium on the PATH it says so and
exits with 0. --pictures FOLDER keeps a picture of each page. `make look` opens the site and the pages of small runs.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

WIDTHS = (390, 1280)  # pixels
NAMES = ("chromium", "chromium-browser", "google-chrome")
NOT_SHOWN = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.alt || i.src)"
# How far the page can be scrolled sideways, and what sticks out first.
TOO_WIDE = """() => {
    const width = document.documentElement.clientWidth, over = document.documentElement.scrollWidth - width
    if (over <= 0) return null
    const out = [...document.body.querySelectorAll("*")].find(e => e.getBoundingClientRect().right > width + 1)
    return `${over} pixels too wide: ${out ? out.outerHTML.slice(0, 100) : "?"}`
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each. Browsers ask for an icon; a page of a run has none."""

    def do_GET(self) -> None:
        if self.path == "/favicon.ico":
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def faults(page: Any, address: str) -> list[str]:
    """What is wrong with the page at an address. page: Playwright's, with the size of the window set."""
    found: list[str] = []
    page.on("console", lambda message: found.append(f"console: {message.text}") if message.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"script: {error}"))
    page.on("requestfailed", lambda request: found.append(f"not loaded: {request.url}"))
    page.goto(address, wait_until="networkidle")
    found += [f"picture does not show: {name}" for name in page.evaluate(NOT_SHOWN)]
    too_wide = page.evaluate(TOO_WIDE)
    return found + ([too_wide] if too_wide else [])


def look(browser: Any, folder: Path, pictures: Path | None) -> tuple[int, list[str]]:
    """Open the pages of a folder. Returns their number, and a line for each fault."""
    pages, lines = sorted(path.relative_to(folder) for path in folder.rglob("*.html")), []
    with served(folder) as address:
        for path in pages:
            for width in WIDTHS:
                page = browser.new_page(viewport={"width": width, "height": 900})
                lines += [f"{folder / path} at {width}: {fault}" for fault in faults(page, f"{address}/{path}")]
                if pictures is not None:
                    picture = pictures / f"{folder.name}_{str(path.with_suffix('')).replace('/', '_')}_{width}.png"
                    page.screenshot(path=picture, full_page=True)
                page.close()
    return len(pages), lines


def main() -> int:
    parser = argparse.ArgumentParser(description="Open HTML pages in headless Chromium.")
    parser.add_argument("folders", nargs="+", type=Path, help="folders of pages, with their subfolders")
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each page")
    chosen = parser.parse_args()
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        print(f"look: skipped, none of {', '.join(NAMES)} is on the PATH (Debian: apt-get install chromium)")
        return 0
    from playwright.sync_api import sync_playwright

    lines = []
    with sync_playwright() as playwright:
        # A sandbox needs another user than root, and CI is root in a container; the pages are our own.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for folder in chosen.folders:
            count, wrong = look(browser, folder, chosen.pictures)
            lines += wrong or ([] if count else [f"{folder}: no page in it"])
            print(f"{folder}: {count} pages, {len(wrong)} faults", flush=True)
        browser.close()
    print("\n".join(lines), end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
