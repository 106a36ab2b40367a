"""The arm stock through GRPO: TRL's own weight sync reaches vLLM's own engine, and das stays identical beside it."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from lost_weights import train_with_lost_weights
from test_arm import ROOT, SMALL, compare

from analysis import read
from analysis.compare import compare as compare_curves
from experiments.harness.arm_configs import arm_config

pytestmark = pytest.mark.slow


def test_stock_beside_none_and_das(tiny_policy: str, tmp_path: Path) -> None:
    short = ["trainer.max_steps=4", "wandb=off", "checkpoint.every=2"]
    folder, printed = compare(tiny_policy, tmp_path, "arms=[none,stock,das]", *short)
    result = json.loads((folder / "result.json").read_text())
    assert result["identical"].keys() == {"das"}
    assert result["ratio_to_stock"].keys() == {"none", "das"}
    assert result["ratio_to_none"].keys() == {"stock", "das"}
    assert "identical: yes  (das against none" in printed
    assert "stock: compared in distribution" in printed
    rows = {name: read.metrics(folder / "arms" / name) for name in ("none", "stock")}
    assert [row["completions_digest"] for row in rows["stock"]] != [row["completions_digest"] for row in rows["none"]]
    assert all(row["drafted"] == 0 and row["tokens_per_pass"] == 1 for row in rows["stock"])
    # Engine and trainer agree at every token of every step, so the weights arrived each time.
    assert all(row["sampling_logp_difference"] < 1e-2 for row in rows["stock"])
    errors = [row["sync_error"] for row in rows["stock"]]
    assert max(errors[:2]) < 1e-2
    assert errors[2:] == [None, None], "two checks are enough"
    timeline = read.timeline(folder / "arms" / "stock", 1)
    assert timeline["step_live"][0] == 8
    assert len(timeline["step_live"]) == rows["stock"][0]["decode_steps"]
    (difference,) = compare_curves([f"{folder}:none", f"{folder}:stock"])
    assert difference.identical is None
    assert "compared in distribution" in difference.lines[-1]


def test_weights_that_do_not_arrive_stop_the_run(tiny_policy: str, tmp_path: Path) -> None:
    with initialize_config_dir(str(ROOT / "configs"), version_base=None):
        config = arm_config("stock", [*SMALL, "wandb=off"])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        message: Any = pool.apply(train_with_lost_weights, (config, tiny_policy, str(tmp_path)))
    assert "engine and trainer disagree on log-probs" in message
