"""task=bench_replay at its smallest, on made-up traces."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from made_inputs import write_traces

from experiments.bench import replay as bench_replay
from experiments.run.errors import CONFIGS, UserError

SMALL = "problems=2 engines=2 max_num_seqs=8 batch=4 group=4 steps=2"


def run(traces: Path, folder: Path, *more: str) -> dict:
    overrides = ["task=bench_replay", f"task.traces={traces}", *(f"task.{option}" for option in SMALL.split()), *more]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        bench_replay.run(compose("config", overrides=overrides), [], str(folder))
    result: dict = json.loads((folder / "result.json").read_text())
    return result


def test_history_makes_the_second_step_shorter(tmp_path: Path) -> None:
    result = run(write_traces(tmp_path / "traces"), tmp_path / "out")
    first, second = result["steps"]
    assert second["tokens_per_pass"] > first["tokens_per_pass"] >= 1
    assert 0 < result["peak_gib"] < 64


@pytest.mark.parametrize(("override", "said"), [("task.engines=0", "task.engines=0"), ("task.gpu=Z1", "unknown GPU")])
def test_bad_input_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, tmp_path / "out", override)
