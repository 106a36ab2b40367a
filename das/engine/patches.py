"""Every patch of vLLM and TRL, each with its reason. Versions are checked first; a hook that has moved is an error.

vLLM is patched once a process, by `apply`. None of these patches does anything in an engine that is not das's:

- GPUModelRunner._sample: verification by keyed noise. vLLM has no extension point for the sampler of a drafted pass.
- GPUModelRunner.propose_draft_token_ids: vLLM gives a custom proposer no request ids. Drafting is timed here too, for
  every method.
- EngineArgs.create_engine_config: an engine of das must not start without the environment that `das.install()` sets.
- VllmConfig.use_v2_model_runner: vLLM's second model runner, the default on GPUs for engines without drafts, has a
  sampler of its own. An engine without drafts would silently draw other noise.
- GPUModelRunner._input_fits_in_drafter: when one request nears max_model_len, vLLM skips the drafter for all requests
  and verifies drafts of token 0 instead. A drafter that runs no model does not need that.
- SamplingParams._validate_spec_decode and build_logitsprocs: vLLM's verifier cannot combine min_p and logit_bias with
  drafts, so vLLM refuses them and does not even load their processors. The keyed verifier can.
- dispatch_cpu_unquantized_gemm (CPU): vLLM packs the weights and drops them, so loading new ones crashes or leaves
  stale ones. Also, a single row of a wide layer gets other bits than one row of several.
- CPUAttentionMetadataBuilder.build (CPU): more than 8 queries of one request get other bits than one at a time.

TRL:
- grpo_trainer.VLLMGeneration, replaced only while a trainer is built (`generation_backend`): the arguments of TRL's
  colocated LLM are fixed, without speculative_config, dtype or eager mode.
- GRPOTrainer.__init__ and ._generate_and_score_completions, from `das.speculate()` to `das.speculate("off")`
  (`patch_trainer`): trainers must be built with the other backend, and TRL tells its backend token ids only, neither
  rows nor the step.
"""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch

from das.engine.cpu_invariance import INPUTS, double_single_rows, split_queries
from das.engine.environment import require_environment
from das.engine.meter import RolloutMeter
from das.engine.noise import REJECTED
from das.engine.versions import NotInstalled, UnsupportedVersion, require_trl, require_vllm

_applied = False


def apply() -> None:
    """Patch vLLM in this process. A second call does nothing.

    Raises UnsupportedVersion when vLLM is not a version that these hooks were checked with, or lacks a hook.
    """
    global _applied
    if _applied:
        return
    require_vllm()
    from vllm.config import VllmConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import SamplingParams
    from vllm.v1.worker import gpu_model_runner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    _patch(EngineArgs, "create_engine_config", _create_engine_config)
    if hasattr(VllmConfig, "use_v2_model_runner"):  # vLLM 0.26 does not have it
        VllmConfig.use_v2_model_runner = _first_model_runner(VllmConfig.use_v2_model_runner)
    _patch(GPUModelRunner, "_sample", _keyed_sample)
    _patch(GPUModelRunner, "propose_draft_token_ids", _propose_with_requests)
    _patch(GPUModelRunner, "_input_fits_in_drafter", _history_drafts_fit)
    _patch(SamplingParams, "_validate_spec_decode", _accept_sampling_params)
    _patch(gpu_model_runner, "build_logitsprocs", _all_logits_processors)
    if current_platform.is_cpu():
        from vllm.model_executor.layers import utils as linear_utils
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder

        _patch(linear_utils, "dispatch_cpu_unquantized_gemm", _packed_linear)
        _patch(CPUAttentionMetadataBuilder, "build", _attention_in_pieces)
    _applied = True


def require_applied() -> None:
    """Raise NotInstalled, in one line, unless vLLM is patched in this process; UnsupportedVersion if it cannot be."""
    if not _applied:
        require_vllm()
        raise NotInstalled(
            "vLLM is not patched in this process: call das.install() before the engine is built (processes that vLLM "
            "starts itself need das's vLLM plug-in: install das with pip, and do not leave it out of VLLM_PLUGINS)"
        )


def _patch(owner: type | ModuleType, name: str, replacement: Callable[..., Any]) -> None:
    """Replace owner.name by a function that calls `replacement(original, ...)`."""
    original = _hook(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, patched)


def _hook(owner: type | ModuleType, name: str) -> Any:
    if not hasattr(owner, name):
        raise UnsupportedVersion(f"{owner.__name__} has no {name}: das/engine/patches.py must be updated")
    return getattr(owner, name)


def das_settings(vllm_config: Any) -> dict[str, Any] | None:
    """The `das` part of the engine's additional_config; None for engines that are not das's."""
    additional_config = vllm_config.additional_config
    return additional_config.get("das") if isinstance(additional_config, dict) else None


def _create_engine_config(original: Callable[..., Any], engine_args: Any, *args: Any, **kwargs: Any) -> Any:
    if das_settings(engine_args) is not None:
        require_environment()
    return original(engine_args, *args, **kwargs)


def _first_model_runner(original: property) -> property:
    def use_v2_model_runner(vllm_config: Any) -> bool:
        return das_settings(vllm_config) is None and bool(original.__get__(vllm_config))

    return property(use_v2_model_runner)


def meter(runner: Any) -> RolloutMeter:
    """The runner's meter of the current rollout."""
    if not hasattr(runner, "das_meter"):
        runner.das_meter = RolloutMeter()
    rollout_meter: RolloutMeter = runner.das_meter
    return rollout_meter


def _keyed_sample(original: Callable[..., Any], runner: Any, logits: Any, spec_decode_metadata: Any) -> Any:
    settings = das_settings(runner.vllm_config)
    if settings is None:
        return original(runner, logits, spec_decode_metadata)
    batch = runner.input_batch
    if settings.get("verifier", "keyed") == "keyed":
        if not hasattr(runner, "das_sampler"):
            from das.engine.sampler import KeyedSampler

            config = runner.model_config
            runner.das_sampler = KeyedSampler(config.seed or 0, config.logprobs_mode)
        # The per-request generators are not used. On the CPU vLLM would call their set_offset, which torch lacks there.
        batch.generators.clear()
        batch.update_async_output_token_ids()
        output = runner.das_sampler.sample(runner, logits, spec_decode_metadata)
    else:
        output = original(runner, logits, spec_decode_metadata)
    num_drafted = np.zeros(batch.num_reqs, np.int64)
    if spec_decode_metadata is not None:
        num_drafted = np.asarray(spec_decode_metadata.num_draft_tokens, np.int64)
    if output.sampled_token_ids.shape[1] == 1:
        num_emitted = np.ones(batch.num_reqs, np.int64)
    else:
        num_emitted = (output.sampled_token_ids != REJECTED).sum(dim=1).cpu().numpy()
    num_emitted[runner.discard_request_mask.np[: batch.num_reqs]] = 0  # unfinished prompts
    meter(runner).record_pass(batch.req_ids, num_drafted, num_emitted)
    return output


def _propose_with_requests(original: Callable[..., Any], runner: Any, *args: Any, **kwargs: Any) -> Any:
    if das_settings(runner.vllm_config) is None:
        return original(runner, *args, **kwargs)
    start = time.perf_counter()
    if hasattr(runner.drafter, "attach"):
        runner.drafter.attach(runner)
    drafts = original(runner, *args, **kwargs)
    meter(runner).draft_s += time.perf_counter() - start
    return drafts


def _history_drafts_fit(original: Callable[..., Any], runner: Any, *args: Any) -> bool:
    return _drafts_by_das(runner.speculative_config) or bool(original(runner, *args))


def _accept_sampling_params(original: Callable[..., Any], params: Any, speculative_config: Any) -> None:
    # das/engine/sampler.py handles min_p and logit_bias row by row. Engines with vLLM's own drafters still refuse them.
    if not _drafts_by_das(speculative_config):
        original(params, speculative_config)
        return
    from vllm.exceptions import VLLMValidationError

    # A refusal here fails one request only. The sampler could only stop the engine.
    for name, instead in (("logprob_token_ids", "ask for logprobs=N"), ("thinking_token_budget", "leave it unset")):
        if getattr(params, name, None) is not None:
            raise VLLMValidationError(f"{name} cannot be combined with das drafts: {instead}")


def _drafts_by_das(speculative_config: Any) -> bool:
    return speculative_config is not None and str(speculative_config.model).startswith("das.")


def _all_logits_processors(original: Callable[..., Any], vllm_config: Any, device: Any, pin: bool, *rest: Any) -> Any:
    if not _drafts_by_das(vllm_config.speculative_config) or any(rest):  # `rest`: pooling, custom processors
        return original(vllm_config, device, pin, *rest)
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(build(vllm_config, device, pin) for build in BUILTIN_LOGITS_PROCESSORS)


def _packed_linear(original: Callable[..., Any], layer: Any, remove_weight: bool) -> None:
    """Pack the weights for oneDNN as vLLM does, but keep them, so that new ones can be loaded and packed again."""
    from vllm.config import get_current_vllm_config

    if das_settings(get_current_vllm_config()) is None:
        original(layer, remove_weight)
        return
    layer.das_repack = functools.partial(_pack, original, layer)
    layer.das_repack()


def _pack(original: Callable[..., Any], layer: Any) -> None:
    original(layer, remove_weight=False)
    if layer.weight.ndim == 2 and layer.weight.shape[1] > INPUTS:
        layer.cpu_linear = double_single_rows(layer.cpu_linear)


def _attention_in_pieces(
    original: Callable[..., Any], builder: Any, common_prefix_len: int, common_attn_metadata: Any, *rest: Any, **kw: Any
) -> Any:
    if das_settings(builder.vllm_config) is not None:
        common_attn_metadata = split_queries(common_attn_metadata)
    return original(builder, common_prefix_len, common_attn_metadata, *rest, **kw)


def repack_linear_layers(model: torch.nn.Module) -> None:
    """Pack the current weights of all linear layers again. The CPU needs this after every load_weights."""
    for module in model.modules():
        repack: Any = getattr(module, "das_repack", None)
        if repack is not None:
            repack()


@contextmanager
def generation_backend(backend: Callable[..., Any]) -> Iterator[None]:
    """Inside, GRPOTrainers that are built get `backend` where TRL would build its own VLLMGeneration.

    Afterwards TRL is as it was. Raises UnsupportedVersion when TRL is not a version that the hook was checked with.
    """
    require_trl()
    from trl.trainer import grpo_trainer

    original = _hook(grpo_trainer, "VLLMGeneration")
    grpo_trainer.VLLMGeneration = backend
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = original


_trainer_originals: dict[str, Any] = {}  # methods of GRPOTrainer as TRL has them, while they are patched


def patch_trainer(build: Callable[..., Any], generate: Callable[..., Any]) -> None:
    """Have every GRPOTrainer be built by `build(original, trainer, ...)`, and generate and score a batch by
    `generate(original, trainer, rows)`, until `unpatch_trainer`. Patches of an earlier call are replaced.

    Raises UnsupportedVersion when TRL is not a version that the hooks were checked with, or lacks a hook.
    """
    require_trl()
    from trl.trainer.grpo_trainer import GRPOTrainer

    unpatch_trainer()
    for name, replacement in (("__init__", build), ("_generate_and_score_completions", generate)):
        _trainer_originals[name] = _hook(GRPOTrainer, name)
        _patch(GRPOTrainer, name, replacement)


def unpatch_trainer() -> None:
    """Give GRPOTrainer back the methods that `patch_trainer` replaced."""
    if not _trainer_originals:
        return
    from trl.trainer.grpo_trainer import GRPOTrainer

    while _trainer_originals:
        setattr(GRPOTrainer, *_trainer_originals.popitem())
