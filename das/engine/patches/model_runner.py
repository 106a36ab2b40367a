"""Engines of das run on vLLM's second model runner, its default for all models since 0.29.

- VllmConfig.use_v2_model_runner, _validate_v2_model_runner: replaced once in each process. vLLM reads an environment
  variable, which holds for all engines of the process, and refuses this runner on a CPU without a build of Triton, and
  for drafters that are no models. Engines of others get vLLM's own answers.
- VllmConfig.__post_init__, which runs again in the process of an engine core.
"""

from collections.abc import Callable
from typing import Any

from das.engine.patches.gpu import graph_drafts
from das.engine.patches.replace import patch, put, required
from das.engine.settings import METHODS, WORKER, das_options, drafts_by_das
from das.general.errors import NotInstalled


def choose_model_runner() -> None:
    """Replace these names in this process. It is called once (front_end.py)."""
    from vllm.config import VllmConfig

    by_vllm = required(VllmConfig, "use_v2_model_runner").fget
    put(VllmConfig, use_v2_model_runner=property(lambda config: is_of_das(config) or by_vllm(config)))
    patch(VllmConfig, "_validate_v2_model_runner", _validate)
    patch(VllmConfig, "__post_init__", _post_init)


def is_of_das(vllm_config: Any) -> bool:
    """Returns whether this is an engine of das."""
    return vllm_config.parallel_config.worker_cls == WORKER


def check_model_runner(vllm_config: Any) -> None:
    """Raise NotInstalled with a one-line message if the engine would not run on the model runner that has das's hooks,
    or if a method of vLLM's drafts that das does not know there."""
    if not vllm_config.use_v2_model_runner:
        raise NotInstalled("an engine of das needs das.install() (or das's plug-in) before it is built")
    method = getattr(vllm_config.speculative_config, "method", None)
    if method not in (None, *METHODS) and not drafts_by_das(vllm_config):
        raise NotInstalled(f"das does not know the speculative method {method}: choose {', '.join(METHODS)}")


def _post_init(original: Callable[..., None], vllm_config: Any) -> None:
    """Check a config. vLLM does so again in the process of an engine core, and would refuse there what `_validate`
    turned on before."""
    if is_of_das(vllm_config) and drafts_by_das(vllm_config):
        put(vllm_config.scheduler_config, async_scheduling=False)
        graph_drafts(vllm_config)
    original(vllm_config)


def _validate(original: Callable[..., None], vllm_config: Any) -> None:
    """Check what vLLM's model runner lacks."""
    if not is_of_das(vllm_config):
        original(vllm_config)
        return
    # das brings these drafters (runner/speculator.py).
    own = {f"speculative method '{name}'" for name in ("custom_class", "suffix", "ngram")}  # ngram: of 0.31
    if unsupported := set(vllm_config._get_v2_model_runner_unsupported_features()) - own:
        raise ValueError(f"vLLM's model runner does not support: {', '.join(sorted(unsupported))}")
    # Before this call vLLM refused it for drafters on the host, and turned it off on CPUs.
    scheduler = vllm_config.scheduler_config
    put(scheduler, async_scheduling=scheduler.async_scheduling | _is_asynchronous(vllm_config))


def _is_asynchronous(vllm_config: Any) -> bool:
    """Returns whether vLLM plans a pass before it knows the tokens of the one before. On a GPU this is the default for
    engines that draft nothing, which never wait for the device, and for those that draft from texts.

    Raises ValueError if the engine asks for it, but its passes have no room: an asynchronous scheduler plans the
    longest draft for every request, and would leave some requests out of each pass."""
    from vllm.platforms import current_platform

    options, scheduler = das_options(vllm_config), vllm_config.scheduler_config
    if not drafts_by_das(vllm_config):
        return bool(options.asynchronous) or (vllm_config.speculative_config is None and not current_platform.is_cpu())
    longest = int(vllm_config.speculative_config.num_speculative_tokens)
    needed = scheduler.max_num_seqs * (1 + longest)
    has_room = scheduler.max_num_batched_tokens >= needed
    if options.asynchronous and not has_room:
        raise ValueError(
            f"asynchronous=True plans {longest} drafted tokens for each of max_num_seqs={scheduler.max_num_seqs} "
            f"requests: set max_num_batched_tokens to {needed} or more (it is {scheduler.max_num_batched_tokens}), or "
            "lower max_num_seqs"
        )
    if options.asynchronous is not None:
        return options.asynchronous
    return options.self_draft is None and has_room and not current_platform.is_cpu()
