"""Rewards of several lags and seeds, read from made-up runs."""

import json
from pathlib import Path

import numpy as np
import pytest

from analysis.lag_rewards import main, rewards_by_lag, table


def make_run(folder: Path, lag: int, rewards: list[float]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"trainer: {{lag: {lag}}}\n")
    rows = ({"step": step, "reward": reward} for step, reward in enumerate(rewards, 1))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_rows_are_grouped_by_lag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "0", 2, [0.0] * 6 + [0.5, 0.7])
    make_run(tmp_path / "1", 0, [1.0] * 8)
    make_run(tmp_path / "2", 2, [0.0] * 6 + [0.1, 0.3])
    rewards = rewards_by_lag(tmp_path)
    assert list(rewards) == [0, 2]
    assert rewards[2].shape == (2, 8)
    assert table(rewards).splitlines()[2] == f"  2   0.400 ± {np.std([0.6, 0.2], ddof=1):.3f}   0.600 0.200"
    main([str(tmp_path)])
    assert "1.000 ± 0.000" in capsys.readouterr().out
    assert (tmp_path / "lag_rewards.png").stat().st_size > 0


def test_a_folder_without_runs_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no run"):
        main([str(tmp_path)])
