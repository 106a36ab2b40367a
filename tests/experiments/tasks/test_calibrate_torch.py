"""task=calibrate_torch at its smallest: its file, its decoder, its refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from composed import composed

from experiments.replay.latency_files import read_latency
from experiments.run.errors import UserError
from experiments.tasks import calibrate_torch


def test_calibrate_torch_writes_a_latency_model(tmp_path: Path) -> None:
    small = ["task.model=tiny", "task.device=cpu", "task.live=[1,3]", "task.drafts=[0,2]", "task.contexts=[8,32]"]
    calibrate_torch.run(composed("task=calibrate_torch", *small, "task.passes=3"), [], str(tmp_path))
    saved = json.loads((tmp_path / "latency.json").read_text())
    assert len(saved["passes"]) == 2 * 2 * 2 * 3
    assert sorted({tuple(row[:3]) for row in saved["passes"]}) == [
        (b, b * (1 + d), b * c) for b in (1, 3) for d in (0, 2) for c in (8, 32)
    ]
    form, source = read_latency(tmp_path / "latency.json")
    assert "torch on CPU, measured" in source
    assert float(form.predict(np.array(2.0), np.array(4.0), np.array(40.0))) > 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["passes"] == 24


def test_a_cached_pass_computes_what_a_whole_one_does() -> None:
    """Cached keys and values of past tokens give the same output as computing all tokens in one pass."""
    torch.manual_seed(0)
    decoder = calibrate_torch.Decoder(calibrate_torch.TINY, torch.device("cpu"), torch.float32)
    tokens = torch.randint(0, 256, (2, 5))
    one = decoder.cache(2, 0, 5)
    decoder.forward(tokens, one)
    again = decoder.cache(2, 3, 2)
    for cached, computed in zip(again, one, strict=True):
        cached[:, :, :, :3] = computed[:, :, :, :3]
    # In the first layer, keys and values depend only on the token itself.
    decoder.forward(tokens[:, 3:], again)
    assert torch.allclose(again[0], one[0], atol=1e-5)
    assert decoder.forward(tokens, one).shape == (2, 5)
    parameters = sum(w.numel() for layer in decoder.layers for w in layer) + 2 * decoder.embedding.numel()
    assert parameters == float(calibrate_torch.TINY.weight_bytes(np.ones(1))[()].item()) / 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("task.model=235B", "choose one of"),
        ("task.device=tpu", "auto, cuda or cpu"),
        ("task.live=[0]", "1 or more"),
        ("task.drafts=[]", "0 or more"),
        ("task.passes=0", "at least 1"),
        ("task.host_us=-1", "not negative"),
        ("task.contexts=[100000]", "raise task.kv_gib"),
    ],
)
def test_calibrate_torch_bad_input_is_one_line(override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        calibrate_torch.check(composed("task=calibrate_torch", "task.device=cpu", override).task)
