"""task=balance at its smallest, on made-up traces."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from made_inputs import write_traces

from experiments.run.errors import CONFIGS, UserError
from experiments.tasks import balance

SMALL = "problems=2 engines=2 max_num_seqs=[4] batch=6 group=4 epochs=2 steps=1 history_engines=2 history_batch=4"


def run(traces: Path, folder: Path, *more: str) -> dict:
    overrides = ["task=balance", f"task.traces={traces}", *(f"task.{option}" for option in SMALL.split()), *more]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        balance.run(compose("config", overrides=overrides), [], str(folder))
    result: dict = json.loads((folder / "result.json").read_text())
    return result


def test_both_parts_are_measured(tmp_path: Path) -> None:
    result = run(write_traces(tmp_path / "traces"), tmp_path / "out")
    rows = result["placement"]
    assert {(row["placement"], row["epoch"]) for row in rows} == {
        (how, e) for how in balance.PLACEMENTS for e in range(2)
    }
    assert all(row["over_bound"] >= 1 - 1e-9 for row in rows)
    history = {(row["history"], row["epoch"]): row["tokens_per_pass"] for row in result["history"]}
    assert history.keys() == {(h, e) for h in ("shared", "private") for e in range(2)}
    assert history["shared", 1] >= history["private", 1]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.history=[ours]", "shared or private"),
        ("task.max_num_seqs=[0]", "at least 1 request"),
        ("task.engines=0", "task.engines=0"),
        ("task.gpu=Z1", "unknown GPU"),
        ("task.traces=nowhere", "are not there"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, tmp_path / "out", override)
