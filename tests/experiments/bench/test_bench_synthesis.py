"""task=bench_synthesis at its smallest, on made-up traces."""

import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from made_inputs import write_traces

from experiments.bench import synthesis as bench_synthesis
from experiments.run.errors import CONFIGS, UserError

SMALL = "problems=2 responses=32 group=4 seeds=1"


def run(traces: list[Path], folder: Path, *more: str) -> dict:
    named = f"task.traces=[{','.join(map(str, traces))}]"
    overrides = ["task=bench_synthesis", named, *(f"task.{option}" for option in SMALL.split()), *more]
    with initialize_config_dir(str(CONFIGS), version_base=None):
        bench_synthesis.run(compose("config", overrides=overrides), [], str(folder))
    result: dict = json.loads((folder / "result.json").read_text())
    return result


def test_synthetic_against_recorded(tmp_path: Path) -> None:
    traces = write_traces(tmp_path / "traces")
    result = run([traces / "rg_llama3b_rl.jsonl.gz"], tmp_path / "out")
    trace = result["rg_llama3b_rl"]
    assert (trace["problems"], trace["responses"]) == (2, 32)
    assert trace["budgets"].keys() == {"fixed 16", "marginal"}
    fixed = trace["budgets"]["fixed 16"]
    assert len(fixed["recorded"]["by_epoch"]) == 8
    assert abs(fixed["error"]["tokens_per_pass"]) < 0.1  # this is what was fitted
    made = np.mean([row["rollout_s"] for row in fixed["synthetic"]])
    assert fixed["error"]["rollout_s"] == pytest.approx(made / fixed["recorded"]["rollout_s"] - 1)


def test_of_several_prompts_of_a_problem_the_first_is_taken(tmp_path: Path) -> None:
    traces = write_traces(tmp_path / "traces")
    with initialize_config_dir(str(CONFIGS), version_base=None):
        task = compose("config", overrides=["task=bench_synthesis"]).task
    work = bench_synthesis.whole_groups(traces / "steer_r1d_qwen14b_pos0to3.jsonl.gz", task)
    assert list(dict.fromkeys(work.problems)) == ["generated-0", "generated-4"]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.seeds=0", "task.seeds=0"),
        ("task.traces=[]", "at least one trace"),
        ("task.group=32", "two groups of task.group=32"),
        ("budget=none", "drafts nothing"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, override: str, said: str) -> None:
    traces = write_traces(tmp_path / "traces")
    with pytest.raises(UserError, match=said):
        run([traces / "rg_llama3b_rl.jsonl.gz"], tmp_path / "out", override)
