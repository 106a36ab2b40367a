"""Runs are read from folders and from offline W&B runs, or refused in one line. test_golden.py has the reports."""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from composed import composed_arm
from omegaconf import OmegaConf
from steps_on_disk import json_lines

from analysis.compare import difference, main
from analysis.identity import equal
from analysis.runs import NotARun, find, is_empty, records
from experiments.arm.tracking import Tracker

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
        (["garbage", "run"], "run-abc.wandb"),
        (["run", "run", "--figure", "no/such/folder/x.png"], "no/such/folder/x.png"),
        (["run", "run", "--size=3"], "--size=3"),
    ],
)
def test_bad_input_is_one_line(named: list[str], of: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    write_run(tmp_path / "run", [row(1)])
    write_run(tmp_path / "arms" / "arms" / "none", [row(1)])
    write_run(tmp_path / "begun", [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "run-abc.wandb").write_text("garbage")
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


def tracked(folder: Path, rows: list[dict[str, Any]], ends: bool) -> None:
    """Log rows to an offline W&B run, as an arm does. ends: whether the run finishes."""
    config = composed_arm("none")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.json").write_text(json.dumps({"commit": "f" * 40 + "-dirty", "seed": 0}))
    tracker = Tracker(config, "group", folder)
    for one in rows:
        tracker.log(one)
    if ends:
        tracker.end({**FINAL, "steps": 3})
    file, tries = Path(tracker.run.settings.sync_file), 3000
    tracker.close()
    while is_empty(file) and (tries := tries - 1):
        time.sleep(0.01)  # W&B's process writes the file after the run has ended


def test_an_offline_wandb_run_equals_its_folder(tmp_path: Path) -> None:
    """They are equal bit for bit, with NaN and digests. A run that was killed and resumed is one run in W&B too."""
    rows = [row(step, loss=math.nan if step == 3 else math.pi / step) for step in (1, 2, 3)]
    tracked(tmp_path / "w", [rows[0], row(2, rollout_s=9.0)], ends=False)
    tracked(tmp_path / "w", rows[1:], ends=True)
    starts = sorted((tmp_path / "w" / "wandb").glob("offline-run-*"))
    assert (
        len({start.name.split("-")[3] for start in starts}) == 1
    )  # two starts within a second differ by a "-1" after it
    (run,) = find(str(starts[1]))
    (folder,) = find(write_run(tmp_path / "folder", rows))
    for ours, theirs in zip(run.rows, folder.rows, strict=True):
        assert all(equal(ours[key], value) for key, value in theirs.items() if key != "alarms")
        assert ours["alarms"] == 0
    assert run.final == FINAL
    assert run.config["trainer.learning_rate"] == 5e-5
    assert difference(folder, run).identical


def test_a_run_that_was_killed_early_is_whole_in_wandb_once_it_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """W&B's process has written nothing yet, or not all steps, when it is killed with the run."""
    rows = [row(step) for step in (1, 2, 3)]
    tracked(tmp_path, rows[:1], ends=False)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    file.write_bytes(file.read_bytes()[:7])
    with pytest.raises(NotARun, match="is empty: the run was killed at its start"):
        find(str(file.parent))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows[:2]))
    tracked(tmp_path, rows[2:], ends=False)
    (run,) = find(str(file.parent))
    assert [each["step"] for each in run.rows] == [1, 2, 3]
    assert capsys.readouterr().err == f"{file} is empty and left out: the run was killed at its start\n"


def test_a_wandb_run_records_what_made_it(tmp_path: Path) -> None:
    tracked(tmp_path, [row(1, alarms=["one", "two"])], ends=False)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    all_records = records(file)
    (run,) = (record["run"] for record in all_records if record["type"] == "run")
    assert (run["run_group"], run["job_type"], run["display_name"]) == ("group", "compare", "group/none")
    assert {"none", "small", "puzzles", "maths", "marginal"} == set(run["tags"])
    assert run["config"]["update"]["meta"]["commit"] == "f" * 40 + "-dirty"
    assert run["git"]["commit"] == "f" * 40
    metrics = [record["metric"] for record in all_records if record["type"] == "metric"]
    assert {"glob_name": "*", "step_metric": "step"}.items() <= next(m for m in metrics if "glob_name" in m).items()
    (rollout,) = (metric for metric in metrics if metric.get("name") == "rollout_s")
    assert rollout["summary"] == {"mean": True, "min": True, "max": True, "last": True}
    (item,) = (record["history"]["item"] for record in all_records if record["type"] == "history")
    assert item["alarms"] == 2
    (end,) = (record["exit"] for record in all_records if record["type"] == "exit")
    assert end["exit_code"] == 1
    files = [path.name for path in file.parent.rglob("*") if path.is_file()]
    assert not [name for name in files if name.endswith((".patch", ".py"))]
