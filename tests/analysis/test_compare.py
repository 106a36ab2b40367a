"""What `python -m analysis.compare` cannot compare ends in one line. test_golden.py has the reports."""

import shutil
import sys
from pathlib import Path

import pytest

from analysis.compare import main

DAS = Path(__file__).parent / "golden" / "run" / "arms" / "das"


@pytest.mark.parametrize(
    ("damaged", "content", "arguments", "named"),
    [
        ("", b"", ["nowhere"], "nowhere"),
        ("", b"", ["run"], "1 run"),
        ("", b"", ["run:das", "run"], ":das"),
        ("", b"", ["whole:psychic", "run"], "'psychic'"),
        ("", b"", ["empty", "run"], "empty"),
        ("", b"", ["run", "run", "--page", "no/such/folder/x.html"], "no/such/folder/x.html"),
        ("", b"", ["run", "run", "--size=3"], "--size=3"),
        ("metrics.jsonl", b"", ["run", "bad"], "bad has no rows"),
        ("metrics.jsonl", b'{"step": 1\n{"step": 2}\n', ["run", "bad"], "bad/metrics.jsonl line 1"),
        ("metrics.jsonl", b'{"step": 1}\n\xff\xfe\n{"step": 2}\n', ["run", "bad"], "bad/metrics.jsonl line 2"),
        ("metrics.jsonl", b'{"loss": 1}\n{"step": 2}\n', ["run", "bad"], "bad: metrics.jsonl has a row without a step"),
        ("config.yaml", b"arm: [", ["run", "bad"], "bad holds a damaged file"),
        ("final.json", b"{", ["run", "bad"], "bad holds a damaged file"),
    ],
)
def test_what_is_no_run_is_one_line(
    damaged: str, content: bytes, arguments: list[str], named: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name in ("run", "whole/arms/das", "bad"):
        shutil.copytree(DAS, tmp_path / name)
    (tmp_path / "empty").mkdir()
    if damaged:
        (tmp_path / "bad" / damaged).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["analysis.compare", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith("error: ")
    assert named in printed
