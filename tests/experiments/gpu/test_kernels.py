"""The part kernels: it finds an operation that depends on the rows, and goes on where it stopped."""

import json
from pathlib import Path

import pytest
import torch

from experiments.gpu import kernels
from experiments.gpu.verdict import Scale


def test_an_operation_that_depends_on_the_rows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [("good", 8, torch.relu), ("bad", 8, lambda x: x * (1.0 if len(x) < 5 else 2.0))]
    monkeypatch.setattr(kernels, "operations", lambda scale: iter(some))
    verdict = kernels.kernels(Scale(False, tmp_path, tmp_path))
    assert verdict.numbers["first_difference"] == {"good": None, "bad": 5}
    assert "NOT bad (from 5 rows on)" in verdict.line


def test_a_second_run_goes_on_behind_the_last_line(tmp_path: Path) -> None:
    scale = Scale(False, tmp_path, tmp_path)
    assert kernels.kernels(scale).ok
    path = tmp_path / kernels.LINES
    lines = path.read_text().splitlines()
    assert len(lines) == 3 * len(list(kernels.operations(scale)))
    path.write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])  # it died while it wrote
    kernels.kernels(scale)
    again = path.read_text().splitlines()
    assert again[:4] == lines[:4]
    key = ("operation", "rows", "digest")
    assert [[json.loads(line)[name] for name in key] for line in again] == [
        [json.loads(line)[name] for name in key] for line in lines
    ]
