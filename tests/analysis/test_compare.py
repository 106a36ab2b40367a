"""Runs are read from folders, or refused in one line. test_golden.py has the reports."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from steps_on_disk import json_lines

from analysis.compare import main

FINAL = {"final_weights": "0123456789abcdef", "optimizer": "fedcba9876543210"}


def row(step: int, **changed: Any) -> dict[str, Any]:
    """A row of metrics.jsonl, with some values changed."""
    defaults = {
        "arm": "none", "step": step, "epoch": step, "reward": 0.1 * step, "loss": 1 / (3 + step), "grad_norm": 0.25,
        "tokens": 100,
        "passes": 50, "tokens_per_pass": 2.0, "length_mean": 12.5, "length_max": 20, "rollout_s": 0.5, "step_s": 1.0,
        "drafted": 10, "accepted": 5, "completions_digest": f"c{step}", "rewards_digest": f"r{step}", "alarms": [],
    }  # fmt: skip
    return {**defaults, **changed}


def write_run(
    folder: Path,
    rows: list[dict[str, Any]],
    config: dict[str, Any] | None = None,
    final: dict[str, str] | None = FINAL,
) -> str:
    """Write a folder as a run does; returns its path."""
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text(json_lines(rows))
    OmegaConf.save(OmegaConf.create({"seed": 0, "arm": {"name": "none"}, **(config or {})}), folder / "config.yaml")
    if final is not None:
        (folder / "final.json").write_text(json.dumps(final))
    return str(folder)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls the command in `tmp_path`, which must end with one line on standard error. Returns the line."""

    def line(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["analysis.compare", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        (printed,) = capsys.readouterr().err.splitlines()
        assert printed.startswith("error: ")
        return printed

    return line


@pytest.mark.parametrize(
    ("named", "of"),
    [
        (["nowhere"], "nowhere"),
        (["run"], "1 run"),
        (["run:das", "run"], ":das"),
        (["arms:psychic", "run"], "'psychic'"),
        (["empty", "run"], "empty"),
        (["begun", "run"], "begun"),
        (["run", "run", "--figure", "no/such/folder/x.png"], "no/such/folder/x.png"),
        (["run", "run", "--size=3"], "--size=3"),
    ],
)
def test_bad_input_is_one_line(named: list[str], of: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    write_run(tmp_path / "run", [row(1)])
    write_run(tmp_path / "arms" / "arms" / "none", [row(1)])
    write_run(tmp_path / "begun", [])
    (tmp_path / "empty").mkdir()
    assert of in refused(*named)


@pytest.mark.parametrize(
    ("name", "content", "of"),
    [
        ("metrics.jsonl", b'{"step": 1\n{"step": 2}\n', "metrics.jsonl line 1"),
        ("metrics.jsonl", b'{"step": 1}\n\xff\xfe\n{"step": 2}\n', "metrics.jsonl line 2"),
        ("metrics.jsonl", b'{"loss": 1}\n{"step": 2}\n', "metrics.jsonl"),
        ("metrics.jsonl", b"7\n{}\n", "metrics.jsonl line 1"),
        ("config.yaml", b"arm: [", "bad"),
        ("final.json", b"{", "bad"),
    ],
)
def test_damaged_files_are_one_line(
    name: str, content: bytes, of: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    for run in ("good", "bad"):
        write_run(tmp_path / run, [row(1), row(2)])
    (tmp_path / "bad" / name).write_bytes(content)
    line = refused("good", "bad")
    assert of in line
    assert "bad" in line
