"""Runs are compared bit by bit, from folders and from offline W&B runs. The report says what cannot be compared."""

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

from analysis.compare import compare, difference, main
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


def test_times_may_differ_but_bits_may_not(tmp_path: Path) -> None:
    base = write_run(tmp_path / "a", [row(step) for step in (1, 2, 3)])
    faster = write_run(tmp_path / "b", [row(step, rollout_s=0.25, passes=25) for step in (1, 2, 3)])
    (difference,) = compare([base, faster])
    assert difference.identical is True
    assert "  rollout time (s/step)    0.25 against 0.5, ratio 0.500" in difference.lines
    assert "  target passes per step   25 against 50, ratio 0.500" in difference.lines
    next_float = math.nextafter(row(2)["loss"], 1)
    other = write_run(tmp_path / "c", [row(1), row(2, loss=next_float), row(3, completions_digest="else")])
    (difference,) = compare([base, other])
    assert difference.identical is False
    assert f"  losses                   first difference at step 2 (0.2, {next_float!r})" in difference.lines
    assert "  completions              first difference at step 3 (c3, else)" in difference.lines
    assert "  rewards                  identical" in difference.lines


def test_different_final_weights_are_reported(tmp_path: Path) -> None:
    base = write_run(tmp_path / "a", [row(1)])
    other = write_run(tmp_path / "b", [row(1)], final={**FINAL, "final_weights": "1" * 16})
    (difference,) = compare([base, other])
    assert difference.identical is False
    assert "  final weights            differ (01234567, 11111111)" in difference.lines


def test_runs_of_different_lengths_with_missing_values_and_nan(tmp_path: Path) -> None:
    base = write_run(tmp_path / "a", [row(step, grad_norm=math.nan if step > 1 else 1.0) for step in (1, 2, 3, 4)])
    rows = [row(step, grad_norm=math.nan if step > 1 else 1.0) for step in (1, 2)]
    for one in rows:
        del one["rewards_digest"]
    shorter = write_run(tmp_path / "b", rows, {"seed": 1, "trainer": {"max_steps": 2}}, final=None)
    (difference,) = compare([base, shorter])
    assert difference.identical is None
    assert "b/none against a/none, 2 steps in common" in difference.lines
    assert "  only in a/none: 2 steps, 3 to 4; they are not compared" in difference.lines
    assert "  rewards                  not recorded in b/none" in difference.lines
    assert "  grad norms               identical, but not finite from step 2 on" in difference.lines
    why = "it has not finished, or did not train"
    assert f"  final weights            not recorded in b/none: {why}" in difference.lines
    assert "  configs differ in seed (0, 1), trainer.max_steps (None, 2)" in difference.lines
    assert (
        difference.lines[-1]
        == "identical: no difference found, but not everything could be compared  (b/none against a/none)"
    )


def test_no_steps_in_common(tmp_path: Path) -> None:
    (difference,) = compare([write_run(tmp_path / "a", [row(1)]), write_run(tmp_path / "b", [row(2)])])
    assert difference.identical is None
    assert difference.lines[0] == "b/none against a/none, 0 steps in common"


def test_arms_of_a_comparison(tmp_path: Path) -> None:
    for arm in ("none", "das"):
        write_run(tmp_path / "run" / "arms" / arm, [row(1, arm=arm)], {"arm": {"name": arm}})
    both = str(tmp_path / "run")
    assert [run.name for run in find(both)] == ["run/none", "run/das"]
    (difference,) = compare([f"{both}:none", f"{both}/arms/das"])
    assert (difference.against, difference.name, difference.identical) == ("none", "das", True)


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
    ("named", "says"),
    [
        (["nowhere"], "nowhere does not exist: name a run's folder"),
        (["run"], "1 run named: a comparison needs two or more"),
        (["run:das", "run"], "run is not a comparison and has no arms: leave out :das"),
        (["arms:psychic", "run"], "arms has no arm 'psychic': choose from none"),
        (["empty", "run"], "empty is not a run"),
        (["begun", "run"], "begun has no rows: the run has not finished a step"),
        (["garbage", "run"], "cannot be read by W&B's reader"),
        (["run", "run", "--figure", "no/such/folder/x.png"], "cannot write no/such/folder/x.png"),
        (["run", "run", "--size=3"], "unrecognized arguments: --size=3"),
    ],
)
def test_bad_input_is_one_line(named: list[str], says: str, tmp_path: Path, refused: Callable[..., str]) -> None:
    write_run(tmp_path / "run", [row(1)])
    write_run(tmp_path / "arms" / "arms" / "none", [row(1)])
    write_run(tmp_path / "begun", [])
    (tmp_path / "empty").mkdir()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "run-abc.wandb").write_text("garbage")
    assert says in refused(*named)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("metrics.jsonl", b'{"step": 1\n{"step": 2}\n', "metrics.jsonl line 1 is not JSON"),
        ("metrics.jsonl", b'{"step": 1}\n\xff\xfe\n{"step": 2}\n', "metrics.jsonl line 2 is not JSON"),
        ("metrics.jsonl", b'{"loss": 1}\n{"step": 2}\n', "a row without a step"),
        ("metrics.jsonl", b"7\n{}\n", "metrics.jsonl line 1 is not a JSON object"),
        ("config.yaml", b"arm: [", "holds a damaged file"),
        ("final.json", b"{", "holds a damaged file"),
    ],
)
def test_damaged_files_are_one_line(
    name: str, content: bytes, says: str, tmp_path: Path, refused: Callable[..., str]
) -> None:
    for run in ("good", "bad"):
        write_run(tmp_path / run, [row(1), row(2)])
    (tmp_path / "bad" / name).write_bytes(content)
    line = refused("good", "bad")
    assert says in line
    assert "bad" in line


def test_the_command_prints_draws_and_writes_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, [row(step) for step in (1, 2)])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["analysis.compare", "a", "b", "--page", "page.html"])
    main()
    printed = capsys.readouterr().out
    assert "a/none 2 0.100 → 0.200 0.5 2.00 12.5 20" in " ".join(printed.split())
    assert "identical: yes  (b/none against a/none)" in printed
    assert (tmp_path / "b" / "curves.png").read_bytes().startswith(b"\x89PNG"), "in the newer run's folder"
    text = (tmp_path / "page.html").read_text()
    assert "identical: yes" in text
    assert text.count("<svg") == 1
    assert "http://" not in text.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


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


def test_runs_on_different_data_are_not_comparable(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / name, [row(1, completions_digest=name)], {"data": {"name": data}})
        for name, data in (("a", "puzzles"), ("b", "arithmetic"), ("c", "puzzles"))
    ]
    other_data, other_tokens = compare(runs)
    assert other_data.identical is None
    why = "b/none and a/none ran on different data: data.name puzzles and arithmetic"
    assert other_data.lines[-1] == f"identical: not comparable  ({why})"
    assert other_tokens.identical is False, "on the same data a difference is a difference"
