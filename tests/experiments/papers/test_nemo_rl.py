"""NeMo RL's projection, simulated."""

from pathlib import Path

import pytest
from composed import composed_run
from made_inputs import write_traces

from analysis.read import result
from experiments.papers.nemo_rl import MFU, SYNC_S, TRAINED, Training, times
from experiments.tasks import reproduce


def test_reproduce_nemo_rl(tmp_path: Path) -> None:
    """Also as a part of the report of everything, which says where the paper's numbers are from."""
    traces = write_traces(tmp_path / "traces")
    config = composed_run("task=reproduce", "paper=nemo_rl", f"task.traces={traces}", "task.problems=2")
    reproduce.run(config, [], str(tmp_path / "run"))
    report = (tmp_path / "run" / "nemo_rl" / "report.md").read_text()
    assert "| 2048 GPUs, lag 2, k 5, 4 tokens a pass | 3.5 / 2.5x |" in report
    assert (tmp_path / "run" / "nemo_rl" / "nemo_live.png").exists()
    rows = {tuple(row[:2]): row[2:] for row in result(tmp_path / "run")["sections"][0]["table"]["rows"]}
    for gpus in ("512", "2048"):
        faster = rows[f"{gpus} GPUs, synchronous", "k 7, 8 tokens a pass"][2]
        assert 3 < float(faster.split()[0]) < 8, "drafts cannot bring more than they accept"
    first, *others = reproduce.replayed(tmp_path / "run", "nemo_rl", tmp_path)
    assert first.setting.startswith("The paper's numbers are second-hand")
    assert not any("second-hand" in section.setting for section in others)


def test_training_is_hidden_behind_rollouts_only_with_a_lag() -> None:
    beside, after, tokens = Training(512, 2), Training(512, 0), 10**7
    assert (beside.engines, after.engines) == (48, 64)
    train_s = TRAINED / 2 * times().model.flop * tokens / (512 * times().gpu.flops * MFU)
    assert after.step_s(100.0, tokens) == pytest.approx(SYNC_S + 100 + train_s)
    assert beside.step_s(100.0, tokens) == pytest.approx(SYNC_S + 100), "a quarter of the GPUs trains meanwhile"
    assert beside.step_s(1.0, tokens) == pytest.approx(SYNC_S + 4 * train_s)
