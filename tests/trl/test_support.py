"""What das cannot train with gets the same line from run.py and from das.speculate()."""

import json
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composed import composed_arm

from das.general.errors import EngineError
from das.trl.generation import SpeculativeGeneration
from das.trl.support import unsupported
from experiments.arm.models import check_policy
from experiments.arm.validate import check_processes
from experiments.run.errors import UserError


def in_a_script(model: Any, state: Any) -> None:
    """Build what rolls out for a trainer of TRL, as far as to its refusal. state: accelerate's."""
    engine: Any = None
    SpeculativeGeneration(model=model, accelerator=SimpleNamespace(state=state), engine=engine, history_unit="epoch")


def test_the_harness_and_scripts_are_refused_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """run.py asks before it builds anything; a script's trainer when it is built, whatever asked for the sharding."""
    state = SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=SimpleNamespace(fsdp_version=1))
    with pytest.raises(EngineError, match=r"FSDP 1 .* use FSDP 2") as in_script:
        in_a_script(None, state)
    config = composed_arm("das")
    check_processes(config)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError) as in_harness:
        check_processes(config)
    assert str(in_harness.value) == str(in_script.value)


def test_deepspeed_is_for_scripts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/nightly/test_sharded_scripts.py trains a script with it."""
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert not unsupported(None, SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=object())))
    with pytest.raises(EngineError, match="no DeepSpeed with use_cpu=True and would train with DDP without a word"):
        in_a_script(None, SimpleNamespace(deepspeed_plugin=None))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EngineError, match=r"counts 1 process of 2, .* where the trainer's arguments have `deepspeed`"):
        in_a_script(None, SimpleNamespace(deepspeed_plugin=object(), num_processes=1))
    monkeypatch.delenv("WORLD_SIZE")
    config = composed_arm("das")
    with pytest.raises(UserError, match=r"DeepSpeed keeps in a form of its own: .* das\.speculate\(\) in a script"):
        check_processes(config)


@pytest.fixture
def fsdp_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks without a GPU, launched with FSDP 2."""
    for name, value in (("ACCELERATE_USE_FSDP", "true"), ("FSDP_VERSION", "2"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("fsdp_on_cpu")
def test_ddp_in_place_of_fsdp_is_refused() -> None:
    """accelerate has no FSDP on a CPU. Its state then has no plugin."""
    state = SimpleNamespace(deepspeed_plugin=None)
    with pytest.raises(EngineError, match=r'without a word: .*\{"distributed_config": \{"fsdp_size": 2\}\}'):
        in_a_script(SimpleNamespace(is_distributed_loading_by_transformers=False), state)
    sharded = SimpleNamespace(is_distributed_loading_by_transformers=True)
    assert not unsupported(sharded, SimpleNamespace(state=state))
    state.fsdp_plugin = SimpleNamespace(fsdp_version=2)
    assert unsupported() == unsupported(None, SimpleNamespace(state=state)) == "", "FSDP 2, as accelerate has it"


def test_checkpoints_of_a_sharded_policy_are_for_cpus(fsdp_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/nightly/test_rank_checkpoints.py resumes one. Those that accelerate shards on GPUs were never tried."""
    config, without = (
        composed_arm("das", "task=train", "engine.processes=2", *more) for more in ([], ["checkpoint.every=0"])
    )
    check_processes(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match=r"checkpoint\.every=\d+: .* \(FSDP on GPUs\) were never tried"):
        check_processes(config)
    check_processes(without)


def test_quantized_policies_are_refused_before_they_are_loaded(tiny_policy: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as in_script:
        in_a_script(SimpleNamespace(quantization_method="bitsandbytes"), None)
    quantized = tmp_path / "quantized"
    copytree(tiny_policy, quantized)
    saved = json.loads((quantized / "config.json").read_text())
    quantization = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (quantized / "config.json").write_text(json.dumps({**saved, "quantization_config": quantization}))
    check_policy(tiny_policy, max_model_len=64)
    with pytest.raises(UserError) as in_harness:
        check_policy(str(quantized), max_model_len=64)
    assert str(in_harness.value) == f"policy.path={quantized}: {in_script.value}"
