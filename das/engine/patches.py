"""Everything that das changes in vLLM and TRL, each with its reason.

vLLM. An engine asks for das by its worker class, `worker_cls="das.engine.worker.DasWorker"`. The hooks go onto the
objects of that engine, so the classes that other engines share stay as they are:

- runner._sample: verification by keyed noise. vLLM has no extension point for the sampler of a drafted pass.
- runner._bookkeeping_sync: a pass is counted when vLLM has its tokens on the host, so that counting waits for nothing.
- runner.propose_draft_token_ids: vLLM gives a custom proposer no request ids. Drafting is timed here too, for every
  method.
- what drafts that branch need: das/engine/branches.py, which hooks an engine only if it asks for them.
- runner.profile_run (GPU): vLLM's profile has a row of logits for each request and its own sampler, so the KV cache
  would take what the rows of drafts need.
- runner.uniform_decode_query_len, cudagraph_dispatcher.uniform_decode_query_len (GPU): vLLM captures full graphs for
  passes in which every request has the longest draft. Ours have any length, and none has the longest.
- compilation_config.custom_ops of an engine with batch-invariant kernels gets "+rms_norm" (GPU).
- runner._input_fits_in_drafter: when one request nears max_model_len, vLLM skips the drafter for all requests and
  verifies drafts of token 0 instead. A drafter that runs no model does not need that.
- builder.build of each CPUAttentionMetadataBuilder (CPU): more than 8 queries of one request get other bits than one
  at a time, and vLLM decides for the whole process whether a sequence's keys are split by load.
- _CPUSHMDistributed.make_group_name, replaced only while an engine of several ranks is built (CPU): vLLM gives the
  shared memory of every launch on a machine the same name.
- WeightTransferEngineFactory gets one more backend, for engines that name it: vLLM's own need CUDA.
- model.load_weights: nobody else tells an engine that its weights are new.
- build_logitsprocs, replaced only while the runner is built: with drafts, vLLM does not load the processors of min_p
  and logit_bias, because its own verifier cannot use them. The keyed verifier can.
- dispatch_cpu_unquantized_gemm, replaced only while weights are loaded, and quant_method.process_weights_after_loading
  of each linear layer (CPU): vLLM packs the weights and drops them, so loading new ones crashes or leaves stale ones.
  Also, a single row of a wide layer gets other bits than one of several.

Where das.install() turns batch-invariant kernels on, vLLM's table of their tiles, which all engines of the process
share, gets more shapes (`tune_matmuls`): it changes no bits between passes.

One method of a shared class is replaced, by `apply`, once in each process:

- InputProcessor.__init__. The front end checks requests, and may run in another process than the worker. The
  replacement does nothing for engines with another worker class. For engines of das it refuses requests that the worker
  could only answer by stopping, and accepts min_p and logit_bias, which vLLM refuses with drafts.

TRL:
- VLLMGeneration, replaced only while a trainer is built (`generation_backend`): the arguments of TRL's colocated LLM
  are fixed, without speculative_config, dtype or eager mode.
- __init__ of the trainers in das/training/trainers.py, and the method with which each rolls out, from `das.speculate()`
  to `das.speculate("off")` (`patch_trainers`): trainers must be built with the other backend, and TRL tells its backend
  token ids only, neither rows nor the step. Experimental trainers take seconds to import, so a class is patched when it
  is imported: that is what _BaseTrainer.__init_subclass__ is for.
"""

import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from das.draft_round import checked_branch_blocks
from das.engine import heads, hook_check
from das.engine.admission import admit
from das.engine.cpu_invariance import INPUTS, double_single_rows, split_queries
from das.engine.drafters.support import check_options
from das.engine.meter import RolloutMeter
from das.engine.tuned_matmuls import LARGE, most_alike
from das.engine.versions import NotInstalled, UnsupportedVersion, require_trl, require_vllm

WORKER = "das.engine.worker.DasWorker"
SETTINGS = {"drafter", "budget", "branch_blocks", "self_draft", "head"}  # keys of additional_config["das"]
EMITTED = -5  # place in what runner._bookkeeping_sync returns: the tokens that each request emitted, on the host
WEIGHT_TRANSFER = "das_gloo"  # the backend of das/engine/weight_transfer.py
_applied = False
_replacing = threading.RLock()
_launched_engines = itertools.count()


def apply() -> None:
    """Replace InputProcessor.__init__ in this process. A second call does nothing.

    Raises UnsupportedVersion when vLLM is not a version that these hooks were checked with, or lacks the hook.
    """
    global _applied
    if _applied:
        return
    require_vllm()
    from vllm.v1.engine.input_processor import InputProcessor

    _patch(InputProcessor, "__init__", _build_front_end)
    _applied = True


def missing_hooks() -> list[str]:
    """A line for every name that each engine of das needs and the installed vLLM lacks or has changed.

    Does not import vLLM.
    """
    found = hook_check.differences(hook_check.installed_sources())
    return [f"{hook} ({hook.why}): {instead}" for hook, instead in found.items() if hook.only_for is None]


def _patch(owner: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Replace owner.name by a function that calls `replacement(original, ...)`. An object's class is left alone."""
    original = _hook(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, patched)


@contextmanager
def _replaced(owner: ModuleType | type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Inside, owner.name calls `replacement(original, ...)`. One thread at a time, so that the original comes back."""
    with _replacing:
        original = _hook(owner, name)
        setattr(owner, name, functools.partial(replacement, original))
        try:
            yield
        finally:
            setattr(owner, name, original)


def _hook(owner: Any, name: str) -> Any:
    if not hasattr(owner, name):
        where = getattr(owner, "__name__", type(owner).__name__)
        raise UnsupportedVersion(f"{where} has no {name}: das/engine/patches.py must be updated")
    return getattr(owner, name)


# ---- the front end ----


def _build_front_end(original: Callable[..., Any], front_end: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
    original(front_end, vllm_config, *args, **kwargs)
    if vllm_config.parallel_config.worker_cls != WORKER:
        additional_config = vllm_config.additional_config
        if isinstance(additional_config, dict) and "das" in additional_config:
            raise NotInstalled(
                f'additional_config asks for das, but worker_cls is "{vllm_config.parallel_config.worker_cls}": '
                f'add worker_cls="{WORKER}" (das.engine_arguments() does; on the command line --worker-cls {WORKER})'
            )
        return
    das_settings(vllm_config)  # refuses settings of another form here, in one line; a worker may be another process
    if drafts_by_das(vllm_config):
        front_end.speculative_config = None  # only the refusal of min_p and logit_bias reads it
    _patch(front_end, "_validate_params", _validate_params)


def _validate_params(original: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Any:
    resolved = original(params, *args, **kwargs)
    admit(params)
    return resolved


# ---- the worker ----


def drafts_by_das(vllm_config: Any) -> bool:
    """Whether the engine's drafts come from das, and not from vLLM's own drafters or from nowhere."""
    speculative_config = vllm_config.speculative_config
    if speculative_config is None:
        return False
    return str(speculative_config.model).startswith("das.") or "head" in das_settings(vllm_config)


def das_settings(vllm_config: Any) -> dict[str, Any]:
    """The `das` part of the engine's additional_config: its `drafter`, `budget`, `branch_blocks`, `self_draft` and
    `head`; {} where it is absent.

    Raises ValueError, in one line, for settings of another form.
    """
    additional_config = vllm_config.additional_config
    settings = additional_config.get("das", {}) if isinstance(additional_config, dict) else {}
    if not isinstance(settings, dict) or set(settings) - SETTINGS:
        raise ValueError(
            f'additional_config["das"] must be a dictionary of {", ".join(sorted(SETTINGS))}, got {settings!r}'
        )
    blocks = checked_branch_blocks(settings.get("branch_blocks", 0))
    if (self_draft := settings.get("self_draft")) is not None:
        if not isinstance(self_draft, dict) or not isinstance(self_draft.get("history"), bool):
            raise ValueError(f"self_draft={self_draft!r}: give weights, passes, and history, true or false")
        check_options({key: value for key, value in self_draft.items() if key != "history"})
        if blocks:
            raise ValueError(f"branch_blocks={blocks}: self-drafts are chains only; set it to 0")
    if (head := settings.get("head")) is not None:
        if not isinstance(head, dict) or set(head) != {"passes"} or heads.depth_problem(head["passes"]):
            raise ValueError(f"head={head!r}: give passes, a whole number from 1 to {heads.DEEPEST}")
        if blocks:
            raise ValueError(f"branch_blocks={blocks}: das_eagle3 drafts chains only; set it to 0")
    return settings


def tune_matmuls() -> None:
    """Give vLLM's batch-invariant matrix products tiles for the shapes of 7B and 8B models (GPU).

    vLLM reads its table when a config is made and when a worker begins, so each process of an engine calls this before.
    """
    try:
        from vllm.model_executor.determinism import batch_invariant_configs
    except ImportError:  # vLLM up to 0.27 has no table: one tile for all shapes
        return
    for table in batch_invariant_configs._BATCH_INVARIANT_MATMUL_TUNED_CONFIGS.values():
        tuned = list(table)
        for shape in LARGE:
            if shape not in table:
                table[shape] = table[most_alike(shape, tuned)]


def keep_norms_invariant(vllm_config: Any) -> None:
    """Let an engine with batch-invariant kernels take vLLM's own kernel for its norms (GPU). A compiled model would
    take Inductor's, whose sums may depend on the number of rows.
    """
    import vllm.envs

    custom_ops = vllm_config.compilation_config.custom_ops
    if vllm.envs.VLLM_BATCH_INVARIANT and not {"+rms_norm", "-rms_norm", "all"} & set(custom_ops):
        custom_ops.append("+rms_norm")


def refuse_head(vllm_config: Any) -> None:
    """Raise ValueError, in one line, for an EAGLE-3 head that belongs to another policy."""
    speculative_config = vllm_config.speculative_config
    if speculative_config is None or speculative_config.method != "eagle3" or not speculative_config.model:
        return
    folder, policy = Path(speculative_config.model), Path(vllm_config.model_config.model)
    if folder.is_dir() and (problem := heads.head_problem(folder, policy)):
        raise ValueError(problem)


def runner_under_construction(vllm_config: Any) -> AbstractContextManager[None]:
    """Inside, a model runner that is built loads all of vLLM's logits processors, if its drafts come from das."""
    if not drafts_by_das(vllm_config):
        return nullcontext()
    from vllm.v1.worker import gpu_model_runner

    return _replaced(gpu_model_runner, "build_logitsprocs", _all_logits_processors)


@contextmanager
def own_shared_memory(vllm_config: Any) -> Iterator[None]:
    """Inside, the ranks of an engine that torchrun launched meet in shared memory that is theirs alone (CPU).

    vLLM's name for it is the same in all launches, so a second one fails, and so does one after a launch that was
    killed. The ranks of a machine have the same parent process, and each builds its engines in the same order.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu() or vllm_config.parallel_config.world_size == 1:
        yield
        return
    from vllm.distributed.device_communicators import cpu_communicator

    own_name = functools.partial(_own_name, f"{os.getppid()}-{next(_launched_engines)}")
    with _replaced(cpu_communicator._CPUSHMDistributed, "make_group_name", own_name):
        yield


def _own_name(prefix: str, original: Callable[..., str], communicator: Any) -> str:
    return f"das-{prefix}-{original(communicator).lstrip('/')}"


def _all_logits_processors(original: Callable[..., Any], vllm_config: Any, device: Any, pin: bool, *rest: Any) -> Any:
    if any(rest):  # pooling, custom processors
        return original(vllm_config, device, pin, *rest)
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(build(vllm_config, device, pin) for build in BUILTIN_LOGITS_PROCESSORS)


def hook_runner(runner: Any) -> None:
    """Let this model runner verify by keyed noise, tell its drafter the request ids, and count what it does."""
    from das.engine.sampler import KeyedSampler

    config, model_config = runner.vllm_config, runner.model_config
    runner.das_meter = RolloutMeter()
    # The index tells the engines of a data-parallel deployment apart. vLLM sets the rank of dense models to 0 in each.
    engine_rank = config.parallel_config.data_parallel_index
    runner.das_sampler = KeyedSampler(model_config.seed or 0, model_config.logprobs_mode, engine_rank)
    _hook(runner, "_sample")
    runner._sample = functools.partial(_sample, runner)
    _patch(runner, "_bookkeeping_sync", functools.partial(_count_pass, runner))
    _patch(runner, "propose_draft_token_ids", functools.partial(_propose_with_requests, runner))
    _hook(runner, "_input_fits_in_drafter")
    if drafts_by_das(config):
        runner._input_fits_in_drafter = lambda *args: True
        # Drafts have any length. A pass is uniform where nobody drafts.
        runner.uniform_decode_query_len = runner.cudagraph_dispatcher.uniform_decode_query_len = 1
    _patch(runner, "profile_run", functools.partial(_profile_with_sampler, runner))


def _profile_with_sampler(runner: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """vLLM's profile of the memory that a pass takes (GPU), with the rows that drafts add, with our sampler, and with
    the weights of self-drafts."""
    from das.engine.sampler import profiled_bytes

    if runner.das_quantized is not None:
        runner.das_quantized.make(runner.das_weights_version)
    original(*args, **kwargs)
    rows = min(runner.max_num_tokens, runner.max_num_reqs * (1 + runner.num_spec_tokens))
    size = profiled_bytes(rows, runner.model_config.get_vocab_size(), runner.model_config.dtype)
    torch.empty(size, dtype=torch.uint8, device=runner.device)  # given back at once; the peak counts


def _sample(runner: Any, logits: Any, spec_decode_metadata: Any) -> Any:
    batch = runner.input_batch
    # The per-request generators are not used. On the CPU vLLM would call their set_offset, which torch lacks there.
    batch.generators.clear()
    batch.update_async_output_token_ids()
    runner.das_num_drafted = (
        [0] * batch.num_reqs if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens
    )
    return runner.das_sampler.sample(runner, logits, spec_decode_metadata)


def _count_pass(runner: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    names = list(runner.input_batch.req_ids)
    kept = original(*args, **kwargs)
    emitted: list[list[int]] = kept[EMITTED]
    if not emitted:  # asynchronous scheduling: the tokens stay on the device, one for each finished prompt
        unfinished = runner.discard_request_mask.np
        num_emitted = [int(not unfinished[row]) for row in range(len(names))]
    else:
        num_emitted = list(map(len, emitted))
    runner.das_meter.record_pass(names, runner.das_num_drafted, num_emitted)
    return kept


def _propose_with_requests(runner: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    from vllm.distributed import get_tp_group

    start = time.perf_counter()
    if not hasattr(runner.drafter, "attach"):
        drafts = original(*args, **kwargs)
    else:
        runner.drafter.attach(runner)
        ranks = get_tp_group()
        drafts = original(*args, **kwargs) if ranks.is_first_rank else None
        drafts = ranks.broadcast_object(drafts)  # a budget that learns times would draft differently on each rank
    runner.das_meter.draft_s += time.perf_counter() - start
    return drafts


def hook_attention(runner: Any) -> None:
    """Let the attention of this model runner give a query the same bits, whatever else is in the pass (CPU)."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends import cpu_attn

    # A copy of vLLM's method that reads this setting. vLLM's own would read the environment variable, which holds for
    # every engine of the process. If a sequence's keys were split by load, sums would depend on the batch.
    build = cpu_attn.CPUAttentionMetadataBuilder.build
    own_globals = {**vars(cpu_attn), "envs": SimpleNamespace(VLLM_CPU_ATTN_SPLIT_KV=False)}
    unsplit_build = FunctionType(build.__code__, own_globals, build.__name__, build.__defaults__, build.__closure__)
    for groups in _hook(runner, "attn_groups"):
        for group in groups:
            for builder in group.metadata_builders:
                if isinstance(builder, cpu_attn.CPUAttentionMetadataBuilder):
                    builder.build = functools.partial(_attention_in_pieces, functools.partial(unsplit_build, builder))


def _attention_in_pieces(
    original: Callable[..., Any], common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any
) -> Any:
    return original(common_prefix_len, split_queries(common_attn_metadata), *args, **kwargs)


def weights_under_load() -> AbstractContextManager[None]:
    """Inside, linear layers that vLLM packs keep their weights, so that new ones can be loaded and packed (CPU)."""
    from vllm.platforms import current_platform

    return kept_weights(invariant=True) if current_platform.is_cpu() else nullcontext()


def kept_weights(invariant: bool = False) -> AbstractContextManager[None]:
    """Inside, linear layers of the CPU keep their weights beside the packed ones, and can be packed again.

    invariant: they give a single row the bits it has beside others; otherwise they compute as vLLM's do.
    """
    from vllm.model_executor.layers import utils as linear_utils

    pack = _pack_invariant if invariant else _pack
    return _replaced(linear_utils, "dispatch_cpu_unquantized_gemm", functools.partial(_packed_linear, pack))


def _packed_linear(pack: Callable[..., None], original: Callable[..., Any], layer: Any, remove_weight: bool) -> None:
    layer.das_repack = functools.partial(pack, original, layer)
    layer.das_repack()
    # Whoever loads weights may then let vLLM process them, as at the start; it would pack them and drop them.
    layer.quant_method.process_weights_after_loading = lambda layer: layer.das_repack()


def _pack(original: Callable[..., Any], layer: Any) -> None:
    original(layer, remove_weight=False)


def _pack_invariant(original: Callable[..., Any], layer: Any) -> None:
    _pack(original, layer)
    if layer.weight.ndim == 2 and layer.weight.shape[1] > INPUTS:
        layer.cpu_linear = double_single_rows(layer.cpu_linear)


def repack_linear_layers(model: torch.nn.Module) -> None:
    """Pack the current weights of all linear layers again. The CPU needs this after every load_weights."""
    for module in model.modules():
        repack: Any = getattr(module, "das_repack", None)
        if repack is not None:
            repack()


def offer_weight_transfer(vllm_config: Any) -> None:
    """Let an engine that names our backend find it."""
    config = vllm_config.weight_transfer_config
    if config is None or config.backend != WEIGHT_TRANSFER:
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if WEIGHT_TRANSFER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(WEIGHT_TRANSFER, "das.engine.weight_transfer", "GlooWeightTransfer")


def hook_loading(model: Any, loaded: Callable[[], None]) -> None:
    """Call `loaded` whenever weights are loaded into the model, by whatever way."""

    def load_weights(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loaded()
        return original(*args, **kwargs)

    _patch(model, "load_weights", load_weights)


# ---- TRL ----


@contextmanager
def generation_backend(backend: Callable[..., Any], trainer: Any) -> Iterator[None]:
    """Inside, `trainer`, which is being built, gets `backend` where TRL would build its own VLLMGeneration.

    Afterwards TRL is as it was. Raises UnsupportedVersion when TRL is not a version that the hook was checked with.
    """
    require_trl()
    from trl.generation import vllm_generation

    original = _hook(vllm_generation, "VLLMGeneration")
    # Some trainers import the class when they are built, others have imported it into their modules.
    modules = {sys.modules[owner.__module__] for owner in type(trainer).__mro__ if owner.__module__.startswith("trl.")}
    places = [module for module in (vllm_generation, *modules) if vars(module).get("VLLMGeneration") is original]
    for module in places:
        vars(module)["VLLMGeneration"] = backend
    try:
        yield
    finally:
        for module in places:
            vars(module)["VLLMGeneration"] = original


Replacements = Mapping[str, Callable[..., Any]]  # by the name of a method
_patched_methods: list[tuple[type, str, Any]] = []  # of TRL's trainers: class, name, the method as TRL has it


def patch_trainers(replacements: Mapping[str, Replacements]) -> None:
    """Replace methods of TRL's trainers until `unpatch_trainers`, also of those that are imported later. Patches of an
    earlier call are replaced.

    replacements: by full name of the class. Each is called as `replacement(original, trainer, ...)`.
    Raises UnsupportedVersion when TRL is not a version that the hooks were checked with, or lacks a hook.
    """
    require_trl()
    from trl.trainer.base_trainer import _BaseTrainer

    def patch(trainer: type) -> None:
        for name, replacement in replacements.get(f"{trainer.__module__}.{trainer.__qualname__}", {}).items():
            _patched_methods.append((trainer, name, _hook(trainer, name)))
            _patch(trainer, name, replacement)

    def patch_new(trainer: type, **kwargs: Any) -> None:
        super(_BaseTrainer, trainer).__init_subclass__(**kwargs)
        patch(trainer)

    unpatch_trainers()
    _BaseTrainer.__init_subclass__ = classmethod(patch_new)
    for trainer in _subclasses(_BaseTrainer):
        patch(trainer)


def unpatch_trainers() -> None:
    """Give TRL's trainers back the methods that `patch_trainers` replaced."""
    from trl.trainer.base_trainer import _BaseTrainer

    if "__init_subclass__" in vars(_BaseTrainer):
        del _BaseTrainer.__init_subclass__
    while _patched_methods:
        setattr(*_patched_methods.pop())


def _subclasses(parent: type) -> list[type]:
    """All classes below `parent` that exist now."""
    children: list[type] = parent.__subclasses__()
    return children + [found for child in children for found in _subclasses(child)]
