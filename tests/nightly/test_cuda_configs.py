"""Engines of das are configured on a stand-in for an H200 as the docs say, and take the graphs that they name."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripts import ROOT

pytest.importorskip("triton.backends.nvidia", reason="Triton has no driver for NVIDIA's GPUs here")
UNDRAFTED = ("1 live", "64 live", "256 live")


def rows_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The rows of stand_in_cuda.py."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, str(ROOT / "tests/engine/patches/stand_in_cuda.py"), str(folder)]
    variables = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "VLLM_CACHE_ROOT": str(folder / "cache")}
    ran = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    line = next(line for line in ran.stdout.splitlines() if line.startswith("ROWS"))
    rows: dict[str, dict[str, Any]] = json.loads(line.removeprefix("ROWS"))
    return rows


def check(rows: dict[str, dict[str, Any]]) -> None:
    """What the docs say holds in all rows."""
    for name, row in rows.items():
        shape, method, *at_level_1 = name.split()
        assert (row["norm"], row["asynchronous"]) == (True, method in ("none", "das")), (name, row)
        assert row["attention"] == ("TRITON_ATTN" if shape == "100m" else None), (name, row)
        graphs, by_das = row["graphs"], method in ("das", "self_draft")
        full = by_das or method in ("none", "ngram")
        assert {graphs[one] for one in UNDRAFTED} == {"FULL" if full else "PIECEWISE"}, (name, row)
        longest = "64 live, all draft 8" if at_level_1 else "15 live, all draft 32"
        drafted = {graphs[one] for one in ("64 live, 5 drafted", longest)}
        assert drafted == {"FULL" if by_das else "PIECEWISE"}, (name, row)
        assert row["largest"] == (768 if by_das else 512), (name, row)
        assert graphs["256 live, 400 drafted"] == ("FULL" if by_das else "NONE"), (name, row)
        assert graphs["256 live, 513 drafted"] == "NONE", (name, row)
        if by_das:  # also with an attention whose full graphs want equal lengths
            assert row["rows of graphs"] == 768, (name, row)
            assert row["in one graph"] == {"ALWAYS": True, "UNIFORM_BATCH": False}, (
                "only then are passes launched ahead"
            )
            assert row["longest draft"] == (8 if at_level_1 else 32), (name, row)
            uniform = row["uniform graphs"]
            assert (uniform["64 live, 5 drafted"], uniform[longest]) == ("PIECEWISE", "FULL"), (name, row)


def test_engines_are_configured_for_a_gpu_as_the_docs_say(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    check(rows)
    assert len(rows) == 7
