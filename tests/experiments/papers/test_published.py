"""The papers' replays that need no recorded traces."""

from pathlib import Path

from composed import composed_run

from experiments.tasks import reproduce


def test_reproduce_nemo_rl(tmp_path: Path) -> None:
    """Also as a part of the report of everything, which says where the paper's numbers are from."""
    reproduce.run(composed_run("task=reproduce", "paper=nemo_rl"), [], str(tmp_path / "run"))
    report = (tmp_path / "run" / "nemo_rl" / "report.md").read_text()
    assert "| 2.72 / 1.7x | 2.72 / 1.70x" in report
    assert "| 6.49 / 2.22x | 6.51 / 2.22x" in report
    assert (tmp_path / "run" / "nemo_rl" / "nemo_heatmap.png").exists()
    first, *others = reproduce.replayed(tmp_path / "run", "nemo_rl", tmp_path)
    assert first.setting.startswith("The paper's numbers are second-hand")
    assert not any("second-hand" in section.setting for section in others)
