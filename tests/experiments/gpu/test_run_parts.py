"""Parts run in processes of their own: one that fails, dies or hangs does not stop the others."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripts import ends

from analysis import check_gpu_page
from experiments.gpu.needs import Machine, problem
from experiments.gpu.parts import ALL, PARTS, Part
from experiments.gpu.run_parts import Bench, run_parts
from experiments.tasks.check_gpu import archive, chosen, on_gpu

MODULE = "tests.experiments.gpu.parts_for_tests"
H100 = Machine("2.13.0+cu130", "13.0", "580.95.05", "NVIDIA H100 80GB HBM3", 78.0, 90, gpu_vllm=True)


def part(name: str, seconds: float = 60, unless: str | None = None) -> Part:
    return Part(name, f"{MODULE}:{name}", "a question", seconds / 2, unless=unless)  # a CPU gets twice the time


def bench(folder: Path, commit: str = "abc") -> Bench:
    return Bench(folder, folder / "cache", gpu=False, identity={"commit": commit, "device": "CPU"})


def test_every_part_has_a_verdict_whatever_the_others_do(tmp_path: Path) -> None:
    parts = [part("broken"), part("dying"), part("hanging", 8), part("bad"), part("good")]
    lines: list[str] = []
    written: list[int] = []
    rows = run_parts(parts, bench(tmp_path), 600, lines.append, lambda rows: written.append(len(rows)))
    assert [row["ok"] for row in rows.values()] == [False, False, False, False, True]
    assert rows["broken"]["line"] == "RuntimeError: a part that is broken"
    assert rows["dying"]["line"].startswith("ended with 9: see ")
    assert rows["hanging"]["line"].startswith("did not end within 8 s and was ended")
    assert 8 <= rows["hanging"]["seconds"] < 16
    assert rows["good"]["line"] == "all is well on the CPU"
    assert rows["good"]["numbers"]["answer"] == 42
    assert written == [1, 2, 3, 4, 5]
    assert len(lines) == 5
    assert "a part\nthat is broken" in (tmp_path / "parts" / "broken" / "log.txt").read_text()
    assert ends(int((tmp_path / "parts" / "hanging" / "child.txt").read_text()))


def test_parts_that_passed_are_kept_for_the_same_code_and_device(tmp_path: Path) -> None:
    for commit, runs in (("abc", "x"), ("abc", "x"), ("def", "xx")):
        rows = run_parts([part("good"), part("bad")], bench(tmp_path, commit), 600, str)
        assert (tmp_path / "parts" / "good" / "runs.txt").read_text() == runs
        assert rows["good"]["ok"]
        assert not rows["bad"]["ok"]


def test_a_part_knows_what_those_before_it_found(tmp_path: Path) -> None:
    parts = [part("good"), part("broken", unless="good"), part("bad", unless="broken"), part("formed")]
    rows = run_parts(parts, bench(tmp_path), 600, str)
    assert [row["line"] for row in rows.values()] == [
        "all is well on the CPU",
        "left out: good answered it",
        "left out: broken answered it",
        "engines are built as triton; good found 42",
    ]


def test_no_part_begins_when_the_time_is_over(tmp_path: Path) -> None:
    rows = run_parts([part("good"), part("bad")], bench(tmp_path), 0, str)
    assert [row["line"] for row in rows.values()] == ["not tried: the time is over; run the command again"] * 2
    assert run_parts([part("good")], bench(tmp_path), 600, str)["good"]["ok"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"driver": None, "name": None}, "no NVIDIA driver is loaded"),
        ({"driver": "570.133.20"}, "the NVIDIA driver is 570.133.20, .* needs 580 or newer"),
        ({"cuda": "12.9", "driver": "570.133.20"}, ""),
        ({"cuda": None, "torch": "2.13.0+cpu"}, "built without CUDA: install requirements/gpu.txt"),
        ({"name": None}, "sees no GPU"),
        ({"gpu_vllm": False}, "vLLM is not the build for GPUs"),
        ({"capability": 75}, "compute capability 7.5"),
        (
            {"free_gib": 22.0},
            r"22 GiB .* too few for first_tokens.*task.parts=\[sampler",
        ),
    ],
)
def test_a_machine_that_lacks_something_gets_one_line(change: dict[str, Any], said: str) -> None:
    why = problem(replace(H100, **change), ALL)
    assert "\n" not in why
    if said:
        with pytest.raises(AssertionError, match=said):
            assert not why, why
    else:
        assert why == ""


def test_parts_are_chosen_in_their_own_order() -> None:
    assert [part.name for part in chosen(["audit", "sampler"])] == ["sampler", "audit"]
    assert not on_gpu("cpu", [])


def test_no_part_takes_the_time_of_all_others() -> None:
    assert max(part.seconds for part in ALL) <= 150
    assert all(part.unless is None or part.unless in PARTS for part in ALL)
    assert len({part.name for part in ALL}) == len(ALL)


def test_the_archive_has_results_and_no_models(tmp_path: Path) -> None:
    (tmp_path / "parts" / "good").mkdir(parents=True)
    (tmp_path / "parts" / "good" / "lines.jsonl").write_text("{}\n")
    with (tmp_path / "model.safetensors").open("wb") as model:
        model.truncate(2**23)
    for _ in range(2):  # the second does not hold the first
        with tarfile.open(archive(tmp_path)) as tar:
            assert tar.getnames() == ["parts/good/lines.jsonl"]


def test_the_page_says_what_failed_and_escapes(tmp_path: Path) -> None:
    facts = {"device": "CPU", "commit": "abc", "date": "2026-11-23", "gpu": False, "versions": {"torch": "2.13.0"}}
    rows = {
        "good": {"ok": True, "seconds": 3.0, "line": "fine", "numbers": {"a": 1}},
        "bad": {"ok": False, "seconds": 3.0, "line": "ended with <9>"},
    }
    check_gpu_page.write(tmp_path / "report.html", facts, {"good": "is it?", "bad": "and this?"}, rows)
    page = (tmp_path / "report.html").read_text()
    assert "1 of 2 parts passed on CPU" in page
    assert "ended with &lt;9&gt;" in page
    assert json.dumps({"a": 1}, indent=1).replace('"', "&quot;") in page
