"""The error of replaying a run, on made-up runs whose times come from a replay."""

import json
from pathlib import Path

import numpy as np
import pytest
from composed import composed
from made_inputs import write_run
from omegaconf import OmegaConf
from steps_on_disk import write_arm

from experiments.compare.recorded_arms import replay_arm, replay_errors
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.times import Drafting, Times
from experiments.simulate.workload import workload

FORM = Drafting(base=3e-3, row=1e-4, drafting=1e-3, token=6e-5)


@pytest.fixture
def arms(tmp_path: Path) -> dict[str, Path]:
    """The folders of two arms whose times come from a replay with FORM, plus noise, and of a third that has none."""
    random = np.random.default_rng(1)
    folders = {name: tmp_path / "arms" / name for name in ("none", "das", "ngram")}
    for name, arm in folders.items():
        write_run(arm, 6)
        config = composed(f"arm={name}", "data.problems=2", "trainer.per_device_train_batch_size=16")
        OmegaConf.save(config, arm / "config.yaml")
        if name == "ngram":
            continue
        steps = replay_arm(read_rollouts(arm, prompt=32), Times(FORM, prefill=1e-5), config)
        rows, timelines = [], []
        for number, step in enumerate(steps, 1):
            line = step.timelines[0]
            seconds = np.diff(line["time_s"], prepend=0.0) * random.normal(1, 0.05, len(line["time_s"]))
            timeline = {"step_time_s": np.cumsum(seconds), "step_live": line["live"], "step_tokens": line["tokens"]}
            timelines.append({key: value.tolist() for key, value in timeline.items()})
            rows.append({"step": number, "rollout_s": float(seconds.sum()), "tokens": step.tokens})
        write_arm(arm, rows, timelines=timelines)
    return folders


def test_times_of_every_second_step_predict_the_others(arms: dict[str, Path]) -> None:
    errors = replay_errors(arms)
    assert errors.keys() == {"none", "das"}, "vLLM's own drafters are not simulated"
    assert errors == pytest.approx({"none": 0.0, "das": 0.0}, abs=0.1)
    metrics = arms["das"] / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps({**row, "rollout_s": 2 * row["rollout_s"]}) + "\n" for row in rows))
    assert replay_errors(arms)["das"] == pytest.approx(-0.5, abs=0.05)


def test_a_replay_sends_the_longest_first_as_the_run_did() -> None:
    """An engine that decodes one request at a time finishes first what is sent first."""
    short, long = np.zeros(5, int), np.zeros(50, int)
    works = [workload(["short", "long"], [short, long], 4)] * 2
    one_at_a_time = composed("arm=none", "engine.max_num_seqs=1")
    lines = [step.timelines[0]["time_s"] for step in replay_arm(works, Times(FORM, prefill=1.0), one_at_a_time)]
    assert np.flatnonzero(np.diff(lines[0]) > 1) + 1 == [5]  # the second request's prompt
    assert np.flatnonzero(np.diff(lines[1]) > 1) + 1 == [50]
