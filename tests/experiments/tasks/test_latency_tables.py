"""latency.json: written, read again, and refused if it is something else; the shipped tables."""

import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from das.budget.latency import LatencyModel
from das.budget.latency_forms import Drafting
from das.replay.hardware import GPUS, MODELS, derived
from experiments.recorded import latency_files
from experiments.recorded.latency_files import chosen_form, read_latency, table_path, write_latency
from experiments.run.errors import CONFIGS, UserError
from experiments.tasks import latency_tables

FORM = Drafting(base=5e-3, row=1e-4, drafting=0.0, token=3e-5)


def config(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("config", overrides=list(overrides))


def rows(growing: int = 0) -> list[list[float]]:
    """Two passes of each of 4 x 3 combinations. growing: tokens of context that each pass adds."""
    passes: list[list[float]] = []
    for live in (1, 2, 8, 32):
        for drafts in (0, 2, 8):
            for turn in range(2):
                b, n = float(live), float(live * (1 + drafts))
                seconds = float(FORM.predict(np.array(b), np.array(n), np.array(0.0)))
                passes.append([b, n, live * (100.0 + growing * len(passes)), seconds * (1 + 0.01 * turn)])
    return passes


@pytest.mark.parametrize("growing", [0, 7])
def test_what_was_measured_is_found_again(tmp_path: Path, growing: int) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, rows(growing), "nothing real", derived=False)
    form, source = read_latency(path)
    assert source == "nothing real, measured"
    b, n = np.array([1.0, 5.0, 20.0]), np.array([3.0, 25.0, 60.0])
    expected = 1.005 * FORM.predict(b, n, np.zeros(3))
    assert form.predict(b, n, 100 * b) == pytest.approx(expected)
    assert LatencyModel(64, str(path)).predict(8, 16, 0) == pytest.approx(float(FORM.predict(8, 24, 0)), rel=0.02)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"passes": []}, "columns must be"),
        ({"columns": ["live", "seconds"]}, "columns must be"),
        ({"passes": [[1, 1, 0]]}, "columns must be"),
        ({"passes": [[1, 1, 0, -1.0]]}, "seconds must be positive"),
        ({"passes": [[1, 0, 0, 1.0]]}, "tokens at least live"),
        ({"passes": [[1, 1, 0, float("nan")]]}, "live must be"),
        ({"passes": [[1, 1, 0, 1.0], [2, 4, 0, 1.0]]}, "not every number"),
        ({"passes": "many"}, "could not convert"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, rows(), "nothing real", derived=False)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=said) as error:
        read_latency(path)
    assert "\n" not in str(error.value)
    for content, reason in (("{}", "source is missing"), ("no", "Expecting value"), ("[1]", "task.latency")):
        path.write_text(content)
        with pytest.raises(UserError, match=reason):
            read_latency(path)
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(UserError, match="can't decode"):
        read_latency(path)
    with pytest.raises(UserError, match="No such file"):
        read_latency(tmp_path / "none.json")


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("model", MODELS)
def test_shipped_tables_are_what_the_command_writes(gpu: str, model: str) -> None:
    """They are also close to the roofline that they come from, between their points too."""
    shipped = json.loads(table_path(gpu, model).read_text())
    assert shipped["derived"]
    assert shipped["passes"] == latency_tables.rows_of(gpu, model, config("task=latency_tables").task)
    form, source = chosen_form(None, gpu, model)
    assert source.endswith("derived, not measured")
    random = np.random.default_rng(0)
    b = np.round(np.exp(random.uniform(0, np.log(512), 500)))
    n, x = b * (1 + random.uniform(0, 16, 500)), b * random.uniform(0, 12000, 500)
    assert np.mean(np.abs(form.predict(b, n, x) / derived(gpu, model).predict(b, n, x) - 1)) < 0.03


def test_unknown_names_are_one_line() -> None:
    with pytest.raises(UserError, match="unknown GPU 'H1000': choose one of A100, B200, H100, H200"):
        chosen_form(None, "H1000", "7B")
    with pytest.raises(UserError, match=r"unknown model size '9B': choose one of .*8B"):
        chosen_form(None, "H100", "9B")


def test_tables_can_be_written_elsewhere(tmp_path: Path) -> None:
    """A trial can leave the shipped tables as they are."""
    before = {path.name: path.stat().st_mtime_ns for path in table_path("H100", "7B").parent.iterdir()}
    overrides = ["task=latency_tables", f"task.tables={tmp_path / 'tables'}", "task.live=[1,2]", "task.drafts=[0,1]"]
    latency_tables.run(config(*overrides), [], str(tmp_path))
    assert {path.name for path in (tmp_path / "tables").iterdir()} == before.keys()
    assert {path.name: path.stat().st_mtime_ns for path in table_path("H100", "7B").parent.iterdir()} == before


def test_derived_tables_hold_rounded_numbers_only() -> None:
    # 24 files once changed in their last digits on another machine.
    def numbers(value: object) -> list[float]:
        if isinstance(value, dict):
            return [number for inner in value.values() for number in numbers(inner)]
        if isinstance(value, list):
            return [number for inner in value for number in numbers(inner)]
        return [value] if isinstance(value, float) else []

    content = json.loads(table_path("H100", "7B").read_text())
    assert all(number == float(f"{number:.5g}") for number in numbers(content))


def measured_run(folder: Path, gpu: bool = True, ok: bool = True) -> Path:
    """The files of a run of task=check_gpu that measured a 7B shape."""
    part = folder / "parts" / "pass_times_7b"
    (part / "calibrate").mkdir(parents=True)
    write_latency(part / "calibrate" / "latency.json", rows(), "vLLM, random weights of shape 7b", derived=False)
    facts = {"device": "NVIDIA H100 80GB HBM3", "date": "2026-11-23", "commit": "abc", "gpu": gpu}
    (folder / "result.json").write_text(json.dumps({**facts, "parts": {"pass_times_7b": {"ok": ok}}}))
    return folder


def test_measured_tables_go_before_derived_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = measured_run(tmp_path / "run")
    tables = tmp_path / "tables"
    latency_tables.run(config("task=latency_tables", f"task.measured={run}", f"task.tables={tables}"), [], "")
    kept = json.loads((tables / "measured" / "H100_7B.json").read_text())
    assert (kept["device"], kept["date"], kept["commit"]) == ("NVIDIA H100 80GB HBM3", "2026-11-23", "abc")
    assert not kept["derived"]
    (tables / "H100_7B.json").write_text(table_path("H100", "7B").read_text())
    monkeypatch.setattr(latency_files, "TABLES", tables)
    monkeypatch.setattr(latency_files.table_path, "__defaults__", (tables, False))
    assert chosen_form(None, "H100", "7B")[1] == "vLLM, random weights of shape 7b, measured"


@pytest.mark.parametrize(("gpu", "ok", "said"), [(False, True, "it ran on"), (True, False, "measured no times")])
def test_runs_that_measured_nothing_are_refused(tmp_path: Path, gpu: bool, ok: bool, said: str) -> None:
    run = measured_run(tmp_path / "run", gpu, ok)
    with pytest.raises(UserError, match=said):
        latency_tables.run(config("task=latency_tables", f"task.measured={run}", f"task.tables={tmp_path}"), [], "")
    empty = config("task=latency_tables", f"task.measured={tmp_path}", f"task.tables={tmp_path}")
    with pytest.raises(UserError, match="no result of task=check_gpu"):
        latency_tables.run(empty, [], "")
