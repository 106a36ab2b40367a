"""setting=agent_small: the policy is made, calls its calculator, and trains to equal bits with drafts and without."""

import json
from pathlib import Path

import pytest
from scripts import run_script

from analysis import read
from experiments.run.errors import CONFIGS
from experiments.simulate.rollouts import read_rollouts

pytestmark = pytest.mark.slow
CACHE = CONFIGS.parent / "outputs" / "cache"  # that of `make run`: `make smoke-tasks` may have made the policy before


def test_an_agent_trains_to_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ["setting=agent_small", "trainer.max_steps=4", "data.problems=4", "wandb=off", "budget=fixed"]
    settings += [f"cache={CACHE}"]
    assert "identical: yes" in run_script("run.py", *settings, f"hydra.run.dir={folder}")
    result = json.loads((folder / "result.json").read_text())
    none, das = (result["arms"][name]["by_turn"] for name in ("none", "das"))
    assert [(turn["requests"], turn["tokens"]) for turn in das] == [(turn["requests"], turn["tokens"]) for turn in none]
    assert das[0]["requests"] == 4 * 16
    assert das[1]["requests"] > 0.3 * das[0]["requests"], "a good share of responses calls the tool"
    assert all(turn["tokens_per_pass"] == 1 for turn in none)
    assert das[0]["tokens_per_pass"] > 1 < das[1]["tokens_per_pass"]
    assert result["derived"] == {}, "no replay knows turns"
    rows = read.metrics(folder / "arms" / "das")
    assert not any(row["alarms"] for row in rows)
    for name in ("requests", "tokens", "passes", "drafted"):
        assert sum(turn[name] for row in rows for turn in row["by_turn"]) == sum(turn[name] for turn in das)
    assert sum(turn["tokens"] for turn in das) == sum(row["tokens"] for row in rows)
    (step, *_) = read_rollouts(folder / "arms" / "das")
    assert len(step) == 16
