"""The parts of task=check_gpu: one that fails, dies or hangs does not stop the others, and what they measure fits."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripts import ends

from experiments.gpu import check_gpu, exact
from experiments.gpu.check_gpu import ARMS, PARTS, Part, run_parts
from experiments.gpu.engines import LINES, THIN, Scale, build, worker_of
from experiments.gpu.speed import ENGINES, SIBLINGS, VISITS, device_times, works
from experiments.policies.shapes import shape_of


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


def test_the_limits_fit_into_one_call() -> None:
    assert sum(part.seconds for part in PARTS.values()) <= 560
    assert tuple(ENGINES) == ARMS


def test_the_part_tokens_takes_the_kernels_of_large_models() -> None:
    shape, requests = shape_of(THIN), len(exact.PROMPTS) * exact.SIBLINGS
    rows = sum(1 + exact.LIMITS[i % len(exact.LIMITS)] for i in range(requests))
    assert rows > 256, "the fused norm changes at 256 rows"
    queries = (1 + max(exact.LIMITS)) * shape.num_attention_heads // shape.num_key_value_heads
    assert queries > 64, "FlashAttention 3 changes there"
    assert (shape.hidden_size, shape.intermediate_size, shape.head_dim) == (4096, 12288, 128), "Qwen3-8B's"
    assert max(exact.PROMPTS) + exact.TOKENS > 3900


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


@pytest.mark.parametrize("gpu", [False, True])
def test_texts_of_all_works_can_be_forced(gpu: bool, tmp_path: Path) -> None:
    """Recorded ones keep their proportions, and siblings and visits stay apart."""
    recorded = tmp_path / "recorded.jsonl"
    rows = [
        {"problem_id": f"{problem}", "response_ids": [10 * problem + visit] * (4000 if sibling else 1000)}
        for problem in range(8)
        for visit in range(VISITS)
        for sibling in range(SIBLINGS)
    ]
    recorded.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for work in (*works(Scale(gpu, tmp_path, tmp_path)), *works(Scale(gpu, tmp_path, tmp_path, recorded))[-1:]):
        visits = [work.recording.of(work.request(visit, True)) for visit in range(VISITS)]
        for texts in visits:
            assert len(texts) == len(work.prompts)
            assert all(text[-1] == work.end and 0 < min(text) <= max(text[:-1]) < work.end for text in texts)
        short = work.first_tokens(5)
        assert all(len(text) <= 5 and text[-1] == work.end for text in short.recording.of(short.request(0, True)))
        assert (len(work.lengths) == 1) == work.name.endswith(" made up")
        assert len(set(map(tuple, work.prompts))) == len(work.prompts), "each request has its own context"
    (first, _, third), seats = visits, len(work.prompts)
    assert len(first[1]) == pytest.approx(4 * len(first[0]), abs=4)
    assert len({text[0] for texts in visits for text in texts}) == VISITS * seats // SIBLINGS
    assert first[0][0] == first[1][0] != third[0][0]


def test_a_device_that_waits_for_drafts_is_not_busy() -> None:
    def kernel(name: str, start: float, end: float, inner: float = 0.0) -> Any:
        own = {"device_type": torch.autograd.DeviceType.CPU, "is_user_annotation": False, "name": name}
        times = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(**own, time_range=times, self_cpu_time_total=end - start - inner)

    kernels = [kernel("mm", 0, 1500, inner=500), kernel("copy", 500, 1000), kernel("wait_for_drafts", 2500, 3000)]
    found = device_times([*kernels, kernel("sum", 3000, 4000)])
    assert found == pytest.approx({"device_share": 0.625, "wait_share": 0.125})
