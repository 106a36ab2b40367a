"""What an engine is not given: a model's code, other classes, loaders of pickles. No engine is built."""

from typing import Any

import pytest

from das.engine.build import EngineSettings, engine_arguments
from das.engine.model_code import refuse_model_code
from das.errors import EngineError, reason_of

REFUSED: list[dict[str, Any]] = [
    {"trust_remote_code": True},
    {"trust_remote_code": "auto"},
    {"worker_cls": "evil.Worker"},
    {"worker_extension_cls": "evil.Worker"},
    {"scheduler_cls": "evil.Scheduler"},
    {"logits_processors": ["evil:Processor"]},
    {"load_format": "pt"},
    {"load_format": "npcache"},
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


TORCH = """Weights only load failed. In PyTorch 2.6, we changed the default value of the `weights_only` argument in \
`torch.load` from `False` to `True`. Re-running `torch.load` with `weights_only` set to `False` will likely succeed, \
but it can result in arbitrary code execution. Do it only if you got the file from a trusted source.
Please file an issue with the following so that we can make `weights_only=True` compatible with your use case: \
WeightsUnpickler error: Unsupported global: GLOBAL os.system was not an allowed global by default. Please use \
`torch.serialization.add_safe_globals([os.system])` or the `torch.serialization.safe_globals([os.system])` context \
manager to allowlist this global if you trust this class/function."""
TRANSFORMERS = """The repository p contains custom code which must be executed to correctly load the model. You can \
inspect the repository content at https://hf.co/p .
Please pass the argument `trust_remote_code=True` to allow custom code to be run."""


def test_no_line_advises_to_open_a_pickle_or_to_run_a_models_code() -> None:
    assert reason_of(ValueError(TORCH)) == (
        "Weights only load failed. WeightsUnpickler error: Unsupported global: GLOBAL os.system was not an allowed "
        "global by default."
    )
    assert reason_of(ValueError(TRANSFORMERS)).endswith("inspect the repository content at https://hf.co/p .")
    assert reason_of(ValueError("Object arrays cannot be loaded when allow_pickle=False")).endswith("=False")
