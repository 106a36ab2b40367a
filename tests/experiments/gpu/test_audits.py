"""The audits of task=check_gpu reach the kernels that 7B and 8B models take on a GPU, as far as sizes tell."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.gpu import audits, layers
from experiments.gpu.verdict import Scale
from experiments.small_policy.shapes import shape_of


def test_the_audits_take_the_kernels_of_large_models() -> None:
    shape = shape_of(audits.SHAPE)
    requests = audits.PROBLEMS * audits.SIBLINGS
    rows = sum(1 + audits.LIMITS[i % len(audits.LIMITS)] for i in range(requests))
    assert rows > 256, "the fused norm changes at 256 rows"
    assert (1 + max(audits.LIMITS)) * shape.heads // shape.key_value_heads > 64, "FlashAttention 3 changes there"
    assert (shape.hidden, shape.intermediate) == (4096, 12288), "Qwen3-8B's"
    assert shape.head_dim == 128
    assert len(audits.PROMPTS) == audits.PROBLEMS
    assert {31, 700} <= set(audits.PROMPTS)
    assert max(audits.PROMPTS) + audits.TOKENS > 3900


def test_an_engine_sleeps_and_wakes_as_in_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """At level 2, which drops the weights; they come back before the cache."""
    calls: list[Any] = []
    llm = SimpleNamespace(
        sleep=lambda level: calls.append(level),
        wake_up=lambda tags: calls.append(*tags),
        collective_rpc=calls.append,
    )
    monkeypatch.setattr("das.trl.engines.in_process.require_sleep_mode", lambda: None)
    monkeypatch.setattr(audits, "_engine", lambda *args, **options: llm)
    monkeypatch.setattr(audits, "_roll_out", lambda *args: ([{"tokens": [1], "logits": [{1: 0.5}]}], {}))
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (len(calls) * 2**31, 0))
    verdict = audits.sleep(Scale(False, Path(), Path()))
    assert verdict.ok
    assert calls == [2, "weights", "reload_weights", "kv_cache"]


def test_the_first_difference_is_the_earliest() -> None:
    same = {"logits": [{1: 0.5}, {2: 0.5}, {3: 0.5}]}
    late, early = ({"logits": [*same["logits"][:i], {9: 0.1}]} for i in (2, 1))
    assert layers.first_difference([same, same], [same, same]) is None
    assert layers.first_difference([same] * 3, [same, late, early]) == {"request": 2, "position": 1}


@pytest.mark.slow
def test_an_operation_that_depends_on_the_rows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit of an engine in which one product of the second layer depends on how many rows there are."""
    build = audits._engine

    def spoiled(worker: Any) -> None:
        product = worker.model_runner.get_model().model.layers[1].mlp.down_proj
        honest = product.forward
        product.forward = lambda x: (honest(x)[0] * (1.0 if len(x) < 12 else 1.001), None)

    def engine(*args: Any, **options: Any) -> Any:
        llm = build(*args, **options)
        llm.collective_rpc(spoiled)
        return llm

    monkeypatch.setattr(audits, "_engine", engine)
    verdict = audits.audit(Scale(False, tmp_path, tmp_path))
    found = verdict.numbers["first_difference"]["halves"]
    assert found["operation"] == "model.layers.1.mlp.down_proj"
    assert found["rows"][0] != found["rows"][1]
    assert not found["graphs"]
    assert "model.layers.1.mlp.down_proj" in verdict.line
    lines = [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()]
    assert next(line for line in lines if "first_difference" in line)["first_difference"] == found
