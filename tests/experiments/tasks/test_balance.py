"""task=balance at its smallest, on made-up traces."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from made_inputs import write_traces

from experiments.run.errors import CONFIGS, UserError
from experiments.tasks.balance import placements, task

SMALL = "problems=2 engines=2 max_num_seqs=[4] batch=6 group=4 epochs=2 steps=1 history_engines=2 history_batch=4"
SMALL += " disturbed=1 disturbed_engines=4 disturbed_slots=4 disturbed_batch=8 restart_s=0.1"


def run(traces: Path, folder: Path, *more: str) -> dict:
    overrides = ["task=balance", f"task.traces={traces}", *(f"task.{option}" for option in SMALL.split()), *more]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        task.run(compose("config", overrides=overrides), [], str(folder))
    result: dict = json.loads((folder / "result.json").read_text())
    return result


def test_all_parts_are_measured(tmp_path: Path) -> None:
    result = run(write_traces(tmp_path / "traces"), tmp_path / "out")
    rows = result["placement"]
    assert {(row["placement"], row["epoch"]) for row in rows} == {
        (how, e) for how in placements.PLACEMENTS for e in range(2)
    }
    assert all(row["over_bound"] >= 1 - 1e-9 for row in rows)
    history = {(row["history"], row["epoch"]): row["tokens_per_pass"] for row in result["history"]}
    assert history.keys() == {(h, e) for h in ("private", "store", "shared") for e in range(2)}
    assert history["store", 0] == history["private", 0]
    assert history["store", 1] >= history["private", 1]
    sent = {row["history"]: row["sent_bytes"] for row in result["history"] if row["epoch"] == 1}
    assert sent["store"] > 0
    assert sent["private"] == sent["shared"] == 0
    disturbed = {row["trouble"]: row for row in result["disturbed"]}
    assert disturbed["none"]["lost"] == 0 < disturbed["all, given up"]["lost"]
    assert disturbed["slow engines"]["over_undisturbed"] > 1.5
    events = [json.loads(line) for line in (tmp_path / "out" / "engines.jsonl").read_text().splitlines()]
    assert sum(row["event"] == "lost" for row in events) == 2
    assert sum(row["event"] == "joined" for row in events) == 6
    assert (tmp_path / "out" / "timeline.png").exists()


def test_one_part_alone(tmp_path: Path) -> None:
    result = run(write_traces(tmp_path / "traces"), tmp_path / "out", "task.parts=[disturbed]", "task.disturbed=0")
    assert result.keys() == {"disturbed"}
    assert [row["lost"] for row in result["disturbed"]] == [0] * 7


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.parts=[all]", "placement, disturbed, history"),
        ("task.history=[ours]", "private, store, shared"),
        ("task.disturbed=2", "choose 0 to 1 of"),
        ("task.slow_factor=0.5", "at least 1"),
        ("task.max_num_seqs=[0]", "at least 1 request"),
        ("task.engines=0", "task.engines=0"),
        ("task.gpu=Z1", "unknown GPU"),
        ("task.traces=nowhere", "are not there"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, tmp_path / "out", override)
