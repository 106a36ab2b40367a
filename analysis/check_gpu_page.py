"""Write the page of task=check_gpu, as one self-contained HTML file."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.page import document
from das.files import write_text

STATES = (
    "td.ok{color:#276749}td.failed{color:#9b2c2c;font-weight:bold}td{vertical-align:top}td:last-child{text-align:left}"
)


def write(
    path: Path, facts: Mapping[str, Any], questions: Mapping[str, str], rows: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the page.

    facts: device, commit, date, gpu, versions. questions: part -> its question. rows: part -> its row of result.json.
    """
    passed = sum(bool(row["ok"]) for row in rows.values())
    heading = f"{passed} of {len(rows)} parts passed on {facts['device']}"
    tiny = "" if facts["gpu"] else "<p class='advice'>Tiny shapes on a CPU: a test of this command, not of a GPU.</p>"
    installed = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    table = "".join(
        f"<tr><td>{html.escape(name)}</td>{_state(row)}<td>{row['seconds']:.0f}</td>"
        f"<td>{html.escape(questions[name])}<br><b>{html.escape(str(row['line']))}</b>{_numbers(row)}</td></tr>"
        for name, row in rows.items()
    )
    body = [
        tiny,
        f"<p>{html.escape(facts['date'])}, commit {html.escape(facts['commit'])}; {html.escape(installed)}</p>",
        f"<table><tr><th>part</th><th></th><th>seconds</th><th>question and finding</th></tr>{table}</table>",
    ]
    write_text(path, document(heading, body, STATES))


def _state(row: Mapping[str, Any]) -> str:
    return "<td class='ok'>ok</td>" if row["ok"] else "<td class='failed'>FAILED</td>"


def _numbers(row: Mapping[str, Any]) -> str:
    if not row.get("numbers"):
        return ""
    text = html.escape(json.dumps(row["numbers"], indent=1))
    return f"<details><summary>numbers</summary><pre>{text}</pre></details>"
