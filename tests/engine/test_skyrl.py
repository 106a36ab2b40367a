"""SkyRL 0.3.0 translates das's settings into vLLM's arguments. No engine is run: SkyRL's trainer needs CUDA."""

import json
import sys
import typing
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import typing_extensions

from das.engine.build import engine_arguments

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(
        find_spec("skyrl") is None, reason="pip install --no-deps --target .dev skyrl==0.3.0 skyrl-gym==0.4.0"
    ),
]
SKYRL = "generator.inference_engine"


def translated(policy: str, settings: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    """The arguments that SkyRL makes of these settings, by name; the classes of worker and proposer in vLLM's config.

    Two names are put where SkyRL expects them: it was written for vLLM 0.23 and for Python 3.12.
    """
    import vllm.entrypoints.launchers.cli_args as moved
    from vllm import AsyncEngineArgs

    sys.modules["vllm.entrypoints.openai.cli_args"] = moved
    vars(typing)["TypedDict"] = typing_extensions.TypedDict
    from skyrl.backends.skyrl_train.inference_servers.utils import build_vllm_cli_args
    from skyrl.train.config import SkyRLTrainConfig

    others = {name: value for name, value in settings.items() if name != "speculative_config"}
    overrides = [
        f"trainer.policy.model.path={policy}",
        "trainer.placement.colocate_all=false",
        f"{SKYRL}.model_dtype=float32",
        f"{SKYRL}.speculative_config={json.dumps(settings['speculative_config'])}",
        f"{SKYRL}.engine_init_kwargs={json.dumps({**others, 'max_model_len': 256, 'weight_transfer_config': None})}",
    ]
    arguments = build_vllm_cli_args(SkyRLTrainConfig.from_cli_overrides(overrides))
    arguments.enforce_eager = True
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config()
    found = {name: getattr(arguments, name) for name in (*settings, "worker_extension_cls")}
    return found, config.parallel_config.worker_cls, config.speculative_config.model


def test_skyrl_passes_the_settings_on(in_process: Callable[..., Any], tiny_policy: str) -> None:
    settings = engine_arguments("das", {"window": 16}, {"name": "marginal"})
    found, worker, proposer = in_process(translated, tiny_policy, settings)
    assert found.pop("worker_extension_cls").startswith("skyrl."), "the extension stays SkyRL's"
    assert found == settings
    assert (worker, proposer) == ("das.engine.worker.DasWorker", "das.engine.proposer.DasProposer")
