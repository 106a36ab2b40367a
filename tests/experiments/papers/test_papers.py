"""The DAS report at its smallest, on made-up traces."""

from pathlib import Path

from composed import composed_run
from made_inputs import write_traces

from experiments.tasks import reproduce

SMALL = "problems=2 maths_steps=10 maths_batch=2 code_steps=2 scope_problems=2"


def test_das_report(tmp_path: Path) -> None:
    small = [f"task.{option}" for option in SMALL.split()]
    traces = write_traces(tmp_path / "traces")
    reproduce.run(
        composed_run("task=reproduce", "paper=das", f"task.traces={traces}", *small), [], str(tmp_path / "out")
    )
    text = (tmp_path / "out" / "das" / "report.md").read_text()
    for title in ("Fig 8", "Fig 10", "Fig 1:", "Figs 11 and 12", "Fig 13 left", "Fig 6"):
        assert f"## {title}" in text
    assert "Fig 10 under other prices" in text
    assert "| das against none, steps 1-30: reduction | 40.7 % |" in text
    assert {path.name for path in (tmp_path / "out" / "das").glob("*.png")} == {
        "das_fig10.png",
        "das_reduction.png",
        "das_fig1.png",
    }
