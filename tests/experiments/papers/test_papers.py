"""The DAS report at its smallest, on made-up traces."""

from pathlib import Path

from composed import composed_run
from made_inputs import write_traces

from experiments.papers.das_needed import needed
from experiments.simulate.times import Affine, Times
from experiments.tasks import reproduce

SMALL = (
    "problems=2 maths_steps=10 maths_batch=2 code_steps=2 ablation_problems=2 window_problems=2 "
    "window_epochs=3 similarity_problems=2"
)


def test_das_report(tmp_path: Path) -> None:
    small = [f"task.{option}" for option in SMALL.split()]
    traces = write_traces(tmp_path / "traces")
    reproduce.run(
        composed_run("task=reproduce", "paper=das", f"task.traces={traces}", *small), [], str(tmp_path / "out")
    )
    text = (tmp_path / "out" / "das" / "report.md").read_text()
    for title in (
        "Fig 8",
        "Fig 10",
        "Fig 1:",
        "Figs 11 and 12",
        "Fig 13 left",
        "Cold start",
        "Fig 6",
        "Fig 7",
        "Fig 2:",
        "Fig 9",
    ):
        assert f"## {title}" in text
    assert "Fig 10 under other prices" in text
    assert "| Fig 8: needed | " in text
    assert "| Fig 8: the text gave | " in text
    assert "| das against none, steps 1-30: reduction | 40.7 % |" in text
    assert {path.name for path in (tmp_path / "out" / "das").glob("*.png")} == {
        "das_fig10.png",
        "das_reduction.png",
        "das_hybrids.png",
        "das_fig1.png",
        "das_fig9.png",
    }


def test_what_half_of_the_time_needs() -> None:
    """Where verifying is free, a second token a pass; where a drafted token costs what an emitted one does, nothing is
    enough."""
    assert needed(Times(Affine(1.0, 0.0)), 256, 100.0).startswith("0.50 of ")
    assert needed(Times(Affine(0.0, 1.0)), 256, 100.0) == "never: 0.0 % at most"
    # One request: a pass of 1 + 1 tokens takes 4 s where one without drafts takes 3, so 2.67 tokens would be needed.
    dear = needed(Times(Affine(2.0, 1.0)), 1, 100.0)
    assert float(dear.split()[0]) > 0.8
    assert int(dear.split()[2].rstrip(",")) > 1
