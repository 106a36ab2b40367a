"""task=replay on a made-up run."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from composed import composed, composed_run
from made_inputs import write_run
from omegaconf import OmegaConf

from experiments.harness.replays.recorded_arms import replay_arm
from experiments.run.errors import UserError
from experiments.simulate.latency_files import write_latency
from experiments.simulate.latency_forms import Drafting
from experiments.simulate.rollouts import read_rollouts
from experiments.simulate.times import Times
from experiments.simulate.workload import workload
from experiments.tasks import replay

FORM = Drafting(base=3e-3, row=1e-4, drafting=1e-3, token=6e-5)


@pytest.fixture
def made_run(tmp_path: Path) -> Path:
    """A run of two arms whose times come from a replay with FORM, plus noise. The task must find them again."""
    random = np.random.default_rng(1)
    for name in ("none", "das"):
        arm = tmp_path / "arms" / name
        write_run(arm, 6)
        arm_config = composed(f"arm={name}", "data.problems=2", "trainer.per_device_train_batch_size=16")
        OmegaConf.save(arm_config, arm / "config.yaml")
        steps = replay_arm(read_rollouts(arm, prompt=32), Times(FORM, prefill=1e-5), arm_config)
        with (arm / "metrics.jsonl").open("w") as file:
            for number, step in enumerate(steps, 1):
                line = step.timelines[0]
                seconds = np.diff(line["time_s"], prepend=0.0) * random.normal(1, 0.05, len(line["time_s"]))
                timeline = {"step_time_s": np.cumsum(seconds), "step_live": line["live"], "step_tokens": line["tokens"]}
                with gzip.open(arm / "rollouts" / f"step_{number:05d}.timeline.json.gz", "wt") as out:
                    json.dump({key: value.tolist() for key, value in timeline.items()}, out)
                row = {"rollout_s": float(seconds.sum()), "tokens": step.tokens, "passes": step.passes}
                file.write(json.dumps(row) + "\n")
    return tmp_path


def test_replay_finds_the_times_again(made_run: Path) -> None:
    replay.run(composed_run("task=replay", f"task.run={made_run}"), [], str(made_run / "out"))
    result = json.loads((made_run / "out" / "result.json").read_text())
    assert result["ordering"]
    for arm in result["arms"].values():
        assert abs(arm["error"]) < 0.1
        assert arm["tokens_per_pass"] == pytest.approx(arm["tokens_per_pass_measured"], rel=0.05)
    assert result["arms"]["das"]["predicted_s"] < result["arms"]["none"]["predicted_s"]
    assert (made_run / "out" / "replay.png").exists()


def test_replay_by_a_measured_latency_and_without_other_drafters(made_run: Path) -> None:
    other = made_run / "arms" / "ngram"
    write_run(other, 1)
    OmegaConf.save(composed("arm=ngram"), other / "config.yaml")
    (other / "rollouts" / "step_00001.timeline.json.gz").write_bytes(b"")
    rows = [
        [b, b * (1 + d), 100 * b, float(FORM.predict(*map(np.array, (b, b * (1 + d), 0.0))))]
        for b in (1.0, 4.0, 16.0)
        for d in (0.0, 1.0, 4.0, 16.0)
    ]
    latency = made_run / "latency.json"
    write_latency(latency, rows, "made up")
    replay.run(
        composed_run("task=replay", f"task.run={made_run}", f"task.latency={latency}"), [], str(made_run / "measured")
    )
    result = json.loads((made_run / "measured" / "result.json").read_text())
    assert "made up, measured" in result["latency"]
    assert result["arms"].keys() == {"none", "das"}
    assert all(abs(arm["error"]) < 0.1 for arm in result["arms"].values())
    with (made_run / "arms" / "das" / "metrics.jsonl").open("r+") as file:
        file.truncate(len(file.readline()))
    with pytest.raises(UserError, match="was it interrupted"):
        replay.run(composed_run("task=replay", f"task.run={made_run}"), [], str(made_run / "cut"))


def test_replay_sends_the_longest_first_as_the_run_did() -> None:
    """An engine that decodes one request at a time finishes first what is sent first."""
    short, long = np.zeros(5, int), np.zeros(50, int)
    works = [workload(["short", "long"], [short, long], 4)] * 2
    one_at_a_time = composed("arm=none", "engine.max_num_seqs=1")
    lines = [step.timelines[0]["time_s"] for step in replay_arm(works, Times(FORM, prefill=1.0), one_at_a_time)]
    assert np.flatnonzero(np.diff(lines[0]) > 1) + 1 == [5]  # the second request's prompt
    assert np.flatnonzero(np.diff(lines[1]) > 1) + 1 == [50]
