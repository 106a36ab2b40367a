"""A script of TRL on two ranks without a GPU that hold a shard each, by DeepSpeed (ZeRO-2 and ZeRO-3) and FSDP 2.

Drafts change nothing, the weight check sees whole tensors, and a training that was killed ends as the one left alone.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from scripts import LIMIT_S, ROOT, TWO_RANKS, exact, of_ranks

OVERLAY = ROOT / ".deepspeed"
CPU = {"DS_ACCELERATOR": "cpu", "ACCELERATE_USE_DEEPSPEED": "true"}
ZERO_3 = {"ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true"}
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "fsdp_2": ("fsdp", {}),
    "zero_2": ("zero", {**CPU, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}),
    "zero_3": ("zero", {**CPU, **ZERO_3, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}),
}
deepspeed = pytest.mark.skipif(
    not (OVERLAY.is_dir() or find_spec("deepspeed")), reason="DeepSpeed is not installed: make deepspeed"
)


def launched(way: str, phase: str, policy: str, folder: Path) -> subprocess.CompletedProcess[str]:
    how, variables = WAYS[way]
    path = os.pathsep.join(map(str, (OVERLAY, ROOT / ".dev", ROOT) if how == "zero" else (ROOT / ".dev", ROOT)))
    command = [sys.executable, *TWO_RANKS, str(ROOT / "tests/trl/sharded_run.py"), how, phase, policy, str(folder)]
    environment = {**os.environ, **variables, "PYTHONPATH": path}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def trained(way: str, phase: str, policy: str, folder: Path, method: str = "das") -> list[Any]:
    """What both ranks did in a training that ended well."""
    run = launched(way, phase, policy, folder)
    assert run.returncode == 0, run.stderr[-5000:]
    return of_ranks(folder, f"{phase}_{method}")


@pytest.mark.parametrize("way", ["fsdp_2", *(pytest.param(way, marks=deepspeed) for way in ("zero_2", "zero_3"))])
def test_drafts_and_kills_change_nothing(way: str, repetitive_policy: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    das = trained(way, "whole", repetitive_policy, whole)
    none = of_ranks(whole, "whole_none")
    assert exact(das) == exact(none)
    for of_none, of_das in zip(none, das, strict=True):
        assert of_das["result"]["weights"] == of_none["result"]["weights"] == none[0]["result"]["weights"]
        assert of_das["steps"][0]["losses"] != of_das["steps"][-1]["losses"]
        for found in (of_none, of_das):
            assert "did not reach the engine: model.layers.1.mlp.down_proj.weight" in found["result"]["sync"]
            assert found["result"]["sync"].endswith("(rank 1)")
    assert sum(step["accepted"] for rank in das for step in rank["steps"]) > 0

    stopped = tmp_path / "stopped"
    assert launched(way, "killed", repetitive_policy, stopped).returncode != 0
    assert of_ranks(stopped, "killed_das") == []
    for of_whole, of_resumed in zip(das, trained(way, "resumed", repetitive_policy, stopped), strict=True):
        assert of_resumed["steps"] == of_whole["steps"][2:]
        assert of_resumed["weights"] == of_whole["weights"]
        assert of_resumed["result"] == of_whole["result"]
