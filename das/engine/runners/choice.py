"""Which of vLLM's two model runners an engine runs on, and das's part of it."""

from contextlib import AbstractContextManager
from typing import Any

from das.engine.contract.versions import NotInstalled, require_second_runner
from das.engine.engine_config import drafts_by_das
from das.engine.methods import METHODS
from das.engine.patches.model_runner import asks_for_second
from das.engine.runners.protocol import Runner


def check_choice(vllm_config: Any) -> None:
    """Raise NotInstalled or UnsupportedVersion with a one-line message if the engine would not run on the model runner
    that its options name, or if something of the engine is not ported to the second one."""
    asks, has_second = asks_for_second(vllm_config), vllm_config.use_v2_model_runner
    if has_second and not asks:
        raise NotInstalled(
            "das needs vLLM's first model runner: call das.install() before the engine is built, or set "
            "VLLM_USE_V2_MODEL_RUNNER=0 in its environment"
        )
    if asks:
        require_second_runner()
        if not has_second:
            raise NotInstalled("engine.runner=second needs das.install() (or das's plug-in) before the engine is built")
        method = getattr(vllm_config.speculative_config, "method", None)
        lacking = f"method {method}"
        if method is None or drafts_by_das(vllm_config) or method in METHODS:
            lacking = "multimodal positions" if getattr(vllm_config.model_config, "uses_mrope", False) else ""
        if lacking:
            raise NotInstalled(f"engine.runner=second: das has no {lacking} there yet; set engine.runner=first")


def runner_under_construction(vllm_config: Any) -> AbstractContextManager[None]:
    """Inside the `with` block, a model runner that is built is one to which das can be added."""
    if not vllm_config.use_v2_model_runner:  # each part is imported where it is needed: no vLLM keeps both for ever
        from das.engine.runners.first import runner as first

        return first.runner_under_construction(vllm_config)
    from das.engine.runners.second import runner as second

    return second.runner_under_construction(vllm_config)


def add_das(model_runner: Any) -> Runner:
    """Add das to vLLM's model runner of either kind."""
    if not model_runner.vllm_config.use_v2_model_runner:
        from das.engine.runners.first import runner as first

        return first.FirstRunner(model_runner)
    from das.engine.runners.second import runner as second

    return second.SecondRunner(model_runner)
