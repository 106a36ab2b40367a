"""Every experiment composes in every profile and states its purpose; its runs are made once, resumed, and may fail."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from experiments import planned_runs
from experiments.arm import resume
from experiments.planned_runs import Run
from experiments.run.errors import CONFIGS, UserError
from experiments.run.progress import Progress
from experiments.tasks import reproduce


@pytest.mark.parametrize(
    "profile", ["small", *(pytest.param(name, marks=pytest.mark.slow) for name in ("smoke", "paper"))]
)
@pytest.mark.parametrize("name", planned_runs.names())
def test_experiment_composes(name: str, profile: str) -> None:
    experiment = planned_runs.load(name, profile, [])
    planned_runs.check_runs([experiment])


def test_runs_are_shared_between_experiments() -> None:
    first, other = (planned_runs.load(name, "small", []) for name in ("das_fig1", "das_fig10"))
    assert list(first.runs.values()) == list(other.runs.values())
    heads = [planned_runs.load(f"nemo_rl_{name}", "small", []).runs["heads"] for name in ("main", "heads")]
    heads.append(planned_runs.load("efficient_rollout_main", "small", []).runs["heads"])
    assert len(set(heads)) == 1, "each would be made anew"
    assert Run(("a=1",), 1.0) == Run(("a=1",), 2.0)  # experiments guess their minutes apart
    changed = planned_runs.load("das_fig1", "small", ["seed=3"])
    assert changed.runs["maths"].folder(Path("x")) != first.runs["maths"].folder(Path("x"))


def test_a_run_reads_the_folder_of_one_before(tmp_path: Path) -> None:
    runs = planned_runs.load("efficient_rollout_weights", "small", ["seed=3"]).runs
    (folder,) = {part for o in runs["counts"].overrides_in(tmp_path) for part in o.split("=") if str(tmp_path) in part}
    assert Path(folder).is_relative_to(runs["heads"].folder(tmp_path))
    other = planned_runs.load("efficient_rollout_weights", "small", ["seed=4"]).runs["counts"]
    assert other.folder(tmp_path) != runs["counts"].folder(tmp_path)
    changed = Run(runs["counts"].overrides, 1.0, (("heads", other),))
    assert changed.folder(tmp_path) != runs["counts"].folder(tmp_path)


def test_overrides_of_the_runs_are_passed_on() -> None:
    given = ["task=reproduce", "profile=smoke", "seed=3", "trainer.max_steps=4", "hydra.run.dir=x", "out=y"]
    assert planned_runs.passed_on([*given, "+vary.budget=[fixed]"]) == [
        "seed=3",
        "trainer.max_steps=4",
        "+vary.budget=[fixed]",
    ]


def test_a_figure_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """The run left no files: the line names the experiment, and the file that is missing."""
    with pytest.raises(UserError, match=r"^experiment=das experiment.only=fig4: .*No such file.*metrics.jsonl"):
        planned_runs.write_section(planned_runs.load("das_fig4", "small", []), tmp_path, "small")


def test_a_run_that_failed_is_a_line_of_the_report(tmp_path: Path) -> None:
    experiment = planned_runs.load("das_fig4", "small", [])
    failed = {experiment.runs["maths"]: "python run.py: told to fail"}
    (section,) = reproduce.sections_of([experiment], "das", tmp_path, "small", failed)
    assert (section.title, section.setting) == (experiment.title, "FAILED: python run.py: told to fail")


def test_unknown_experiment() -> None:
    assert {path.stem for path in (CONFIGS / "experiment").glob("*.yaml")} == set(planned_runs.FILES)
    with pytest.raises(UserError, match=r"experiment.only=seeds: choose one of batch, budget"):
        planned_runs.load("ablation_seeds", "small", [])
    assert planned_runs.load("ablation_batch", "small", []).command == "experiment=ablation experiment.only=batch"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A root whose run.py takes no time. It fails if told so, and otherwise leaves a result."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "run.py").write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "folder = Path(sys.argv[-1].split('=', 1)[1].strip(\"'\"))\n"
        "if 'fail=yes' in sys.argv: sys.exit('error: told to fail')\n"
        "(folder / 'result.json').write_text(json.dumps(sys.argv[1:-1]))\n"
    )
    monkeypatch.setattr(resume, "CONFIGS", tmp_path / "root" / "configs")
    composed = SimpleNamespace(config=OmegaConf.create({"task": {}}))
    monkeypatch.setattr(planned_runs, "composed", lambda overrides: composed)
    return tmp_path


def test_runs_are_made_once_and_failures_do_not_stop_the_rest(quick: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, other = Run(("a=1",), 1.0), Run(("fail=yes",), 1.0), Run(("task=train", "a=2"), 1.0)
    failed = planned_runs.make([good, bad, other, good], quick, Progress(0, terminal=sys.stdout))
    assert failed == {bad: "python run.py fail=yes: told to fail"}
    assert json.loads((other.folder(quick) / "result.json").read_text()) == ["task=train", "a=2"]
    assert other.folder(quick).name.startswith("train-")
    printed = capsys.readouterr().out
    assert "[3/3]" in printed
    assert "(about 3 min for all that remain)" in printed, "three runs of a minute"
    stamp = (good.folder(quick) / "result.json").stat().st_mtime_ns
    assert planned_runs.make([good, other], quick, Progress(0, terminal=sys.stdout)) == {}
    assert "2 of 2 runs are finished already" in capsys.readouterr().out
    assert (good.folder(quick) / "result.json").stat().st_mtime_ns == stamp


def test_a_run_that_another_process_makes_is_left_alone(quick: Path) -> None:
    running = Run(("a=1",), 1.0)
    with resume.hold(running.folder(quick)), pytest.raises(UserError, match="still running"):
        planned_runs.make([running], quick, Progress(0))
    assert running.folder(quick).exists()


def test_a_run_made_by_hand_does_not_stop_the_report(quick: Path) -> None:
    made = Run(("a=1",), 1.0)
    made.folder(quick).mkdir(parents=True)
    (made.folder(quick) / "meta.json").write_text(json.dumps({"commit": "0123456789abcdef-dirty"}))
    (made.folder(quick) / "result.json").write_text("{}")
    assert "commit 0123456789-dirty; 1 runs, 0 minutes" in reproduce.provenance(quick, [made])
