"""task=bench_dispatch at its smallest."""

import json
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from experiments.bench import dispatch
from experiments.run.errors import CONFIGS, UserError

SMALL = "engines=2 batch=4 group=2 max_num_seqs=[4,1] repeats=1"


def run(folder: Path, *more: str) -> dict:
    overrides = ["task=bench_dispatch", *(f"task.{option}" for option in SMALL.split()), *more]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        dispatch.run(compose("config", overrides=overrides), [], str(folder))
    result: dict = json.loads((folder / "result.json").read_text())
    return result


def test_every_case_is_timed(tmp_path: Path) -> None:
    cases = run(tmp_path)["cases"]
    assert [(case["slots"], case["requests"]) for case in cases] == [(4, 8), (1, 8)]
    assert all(0 < case["first_ms"] <= case["all_ms"] for case in cases)


@pytest.mark.parametrize(
    ("override", "said"), [("task.max_num_seqs=[0]", "at least 1 request"), ("task.engines=0", "engines")]
)
def test_bad_input_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        run(tmp_path, override)
