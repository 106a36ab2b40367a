"""The parts of task=check_gpu: one that fails, dies or hangs does not stop the others, and one can say no."""

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import ends

from experiments.gpu import check_gpu, exact
from experiments.gpu.check_gpu import Part, run_parts
from experiments.gpu.engines import LINES, Scale, build, worker_of


def part(*arms: str, seconds: float = 60) -> Part:
    return Part(seconds / 2, "tests.experiments.gpu.parts_for_tests", arms)  # a CPU gets twice the time


@pytest.mark.slow  # it waits for one that hangs
def test_every_part_has_a_verdict_whatever_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made = {"broken": part(), "dying": part(), "hanging": part(seconds=8), "good": part("well", "better")}
    monkeypatch.setattr(check_gpu, "PARTS", made)
    scale = Scale(False, tmp_path, tmp_path)
    rows = run_parts(list(made), scale, 600)
    assert [row["ok"] for row in rows.values()] == [False, False, False, True]
    assert rows["broken"]["lines"] == ["RuntimeError: a part that is broken"]
    assert rows["dying"]["lines"][0].startswith("ended with 9: see ")
    assert rows["hanging"]["lines"][0].startswith("ended after 8 s: see ")
    assert rows["good"]["lines"] == ["all is well on the CPU", "all is better on the CPU"]
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert sum(line.get("answer") == 42 for line in lines) == 2
    assert ends(next(line["child"] for line in lines if "child" in line))
    printed = capfd.readouterr().out.splitlines()
    assert [json.loads(line) for line in printed if line.startswith("{")] == lines
    assert (tmp_path / "good_well.log").read_text() == "into the log\n"
    assert run_parts(["broken"], scale, 0)["broken"]["lines"] == ["not tried, the time is over"]


@pytest.mark.slow
def test_logits_that_depend_on_the_rows_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(*args: Any, **options: Any) -> Any:
        llm = build(*args, **options)
        product = worker_of(llm).model_runner.get_model().model.layers[1].mlp.down_proj
        honest = product.forward
        product.forward = lambda x: (honest(x)[0] * (1.0 if len(x) < 12 else 1.001), None)
        return llm

    monkeypatch.setattr(exact, "build", engine)
    (tmp_path / LINES).write_text("")
    verdict = exact.tokens(Scale(False, tmp_path, tmp_path))
    assert not verdict.ok
    assert "in halves" in verdict.line
