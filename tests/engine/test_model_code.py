"""What an engine is not given: a model's code, other classes, loaders of pickles. No engine is built."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from das.engine.build import engine_arguments
from das.engine.model_code import refuse_model_code
from das.engine.settings import EngineSettings
from das.general.errors import EngineError, reason_of
from experiments.run.errors import failure_line
from tests.experiments.run.bad_inputs import Opened

ADVICE = re.compile(r"weights_only|safe_globals|trust_remote_code=True|you trust")

REFUSED: list[dict[str, Any]] = [
    {"trust_remote_code": True},
    {"worker_cls": "evil.Worker"},
    {"worker_extension_cls": "evil.Worker"},
    {"scheduler_cls": "evil.Scheduler"},
    {"logits_processors": ["evil:Processor"]},
    {"load_format": "pt"},
    {"load_format": "mine"},
    {"distributed_executor_backend": "evil.Executor"},
    {"kv_transfer_config": {"kv_connector_module_path": "evil"}},
    {"compilation_config": {"backend": "evil.compile"}},
    {"speculative_config": {"method": "custom_class", "model": "evil.Proposer"}},
]


@pytest.mark.parametrize("extra", REFUSED)
def test_no_engine_gets_code_by_its_settings(extra: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=r"^\w[\w.]+=.*; leave it out$"):
        EngineSettings("policy", extra=extra)
    with pytest.raises(EngineError, match=r"; leave it out$"):
        EngineSettings("policy", "draft_model", speculative={"model": "draft", "num_speculative_tokens": 1, **extra})


def test_what_brings_no_code_is_taken() -> None:
    refuse_model_code(
        {
            "trust_remote_code": False,
            "worker_cls": "auto",
            "load_format": "dummy",
            "distributed_executor_backend": "mp",
            "compilation_config": {"backend": "inductor"},
            "model_init_kwargs": {"use_safetensors": True, "attn_implementation": "sdpa"},
        }
    )
    with pytest.raises(EngineError, match="custom_class"):
        engine_arguments("suffix", speculative={"method": "custom_class", "model": "evil.P"})


def test_no_line_advises_to_open_a_pickle_or_to_run_a_models_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own.A"}}')
    (tmp_path / "own.py").write_text("import os\nos._exit(77)\n")
    torch.save(Opened(), tmp_path / "optimizer.pt")
    with pytest.raises(pickle.UnpicklingError, match="weights_only") as refused:
        torch.load(tmp_path / "optimizer.pt", weights_only=True)
    line = failure_line(refused.value)
    assert line.startswith("UnpicklingError: Weights only load failed. ")
    assert not ADVICE.search(line)
    assert "os._exit" in line or "posix._exit" in line, "what the file holds is said"
    with pytest.raises(ValueError, match="trust_remote_code=True") as foreign:
        AutoConfig.from_pretrained(tmp_path, trust_remote_code=False)
    assert "contains custom code" in failure_line(foreign.value)
    assert not ADVICE.search(failure_line(foreign.value))
    assert reason_of(ValueError("Object arrays cannot be loaded when allow_pickle=False")).endswith("=False")
