"""The model runner samples with keyed noise, drafts with das, and counts what it does.

- runner._sample: verification by keyed noise. vLLM has no extension point for the sampler of a drafted pass.
- runner._bookkeeping_sync: a pass is counted when vLLM has its tokens on the host, so that counting waits for nothing.
- runner.propose_draft_token_ids: vLLM gives a custom proposer no request ids. Drafting is timed here too, for every
  method.
- runner._input_fits_in_drafter: when one request nears max_model_len, vLLM skips the drafter for all requests and
  verifies drafts of token 0 instead. A drafter that runs no model does not need that.
- build_logitsprocs, replaced only while the runner is built: with drafts, vLLM does not load the processors of min_p
  and logit_bias, because its own verifier cannot use them. The keyed verifier can.
"""

import functools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from das.engine.engine_config import drafts_by_das
from das.engine.patches import gpu
from das.engine.patches.replace import patch, replaced, required
from das.engine.rollouts.meter import RolloutMeter
from das.verify.sampler import KeyedSampler

EMITTED = -5  # place in what runner._bookkeeping_sync returns: the tokens that each request emitted, on the host


def runner_under_construction(vllm_config: Any) -> AbstractContextManager[None]:
    """Inside, a model runner that is built loads all of vLLM's logits processors, if its drafts come from das."""
    if not drafts_by_das(vllm_config):
        return nullcontext()
    from vllm.v1.worker import gpu_model_runner

    return replaced(gpu_model_runner, "build_logitsprocs", _all_logits_processors)


def _all_logits_processors(original: Callable[..., Any], vllm_config: Any, device: Any, pin: bool, *rest: Any) -> Any:
    if any(rest):  # pooling, custom processors
        return original(vllm_config, device, pin, *rest)
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors

    return LogitsProcessors(build(vllm_config, device, pin) for build in BUILTIN_LOGITS_PROCESSORS)


def hook_runner(runner: Any) -> None:
    """Let this model runner verify by keyed noise, tell its drafter the request ids, and count what it does."""
    config, model_config = runner.vllm_config, runner.model_config
    runner.das_meter = RolloutMeter()
    # The index tells the engines of a data-parallel deployment apart. vLLM sets the rank of dense models to 0 in each.
    engine_rank = config.parallel_config.data_parallel_index
    runner.das_sampler = KeyedSampler(model_config.seed or 0, model_config.logprobs_mode, engine_rank)
    required(runner, "_sample")
    runner._sample = functools.partial(_sample, runner)
    patch(runner, "_bookkeeping_sync", functools.partial(_count_pass, runner))
    patch(runner, "propose_draft_token_ids", functools.partial(_propose_with_requests, runner))
    required(runner, "_input_fits_in_drafter")
    if drafts_by_das(config):
        runner._input_fits_in_drafter = lambda *args: True
        gpu.capture_undrafted_passes(runner)
    gpu.profile_with_sampler(runner)


def _sample(runner: Any, logits: Any, spec_decode_metadata: Any) -> Any:
    """runner._sample: logits are [rows, vocab]. Returns vLLM's SamplerOutput."""
    batch = runner.input_batch
    # The per-request generators are not used. On the CPU vLLM would call their set_offset, which torch lacks there.
    batch.generators.clear()
    batch.update_async_output_token_ids()
    runner.das_num_drafted = (
        [0] * batch.num_reqs if spec_decode_metadata is None else spec_decode_metadata.num_draft_tokens
    )
    return runner.das_sampler.sample(runner, logits, spec_decode_metadata)


def _count_pass(runner: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """runner._bookkeeping_sync, behind which the pass is counted."""
    names = list(runner.input_batch.req_ids)
    found = original(*args, **kwargs)
    emitted: list[list[int]] = found[EMITTED]  # by row
    if not emitted:  # asynchronous scheduling: the tokens stay on the device, one for each finished prompt
        unfinished = runner.discard_request_mask.np
        num_emitted = [int(not unfinished[row]) for row in range(len(names))]
    else:
        num_emitted = list(map(len, emitted))
    runner.das_meter.record_pass(names, runner.das_num_drafted, num_emitted)
    return found


def _propose_with_requests(runner: Any, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """runner.propose_draft_token_ids, timed. A drafter of das learns of its runner before, and drafts on one rank."""
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
