"""Build a vLLM engine that drafts by a given method and verifies with keyed noise, or an unmodified vLLM engine."""

import gc
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from das.budget import DEFAULT_BUDGET
from das.engine.checked_policies import advice, head_refusal
from das.engine.settings import WORKER, DraftOptions, EngineSettings
from das.general.errors import EngineError, reason_of
from das.general.side_output import stage

if TYPE_CHECKING:
    from vllm import LLM


OF_VLLM = (  # settings that vLLM has, by the same names
    *("model", "dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"),
    *("enable_chunked_prefill", "enforce_eager", "gpu_memory_utilization", "tensor_parallel_size", "seed"),
)
OPTIONS = (*(each.name for each in fields(DraftOptions)), "self_draft", "speculative")  # of engine_arguments()


def check_draft_model(folder: str) -> None:
    """Raise EngineError if a draft model's folder does not exist, is damaged, or if it takes images. Hub ids, which are
    no folders, are not checked here; vLLM compares the vocabularies."""
    config = Path(folder) / "config.json"
    try:
        found = dict(json.loads(config.read_text())) if config.is_file() else None
    except (OSError, ValueError, TypeError) as error:
        raise EngineError(f"{config} cannot be read ({reason_of(error)})") from None
    if "vision_config" in (found or {}):
        raise EngineError(f"draft model {folder} takes images: give a model of text alone, with the policy's tokenizer")
    if found is None and (Path(folder).is_absolute() or folder.startswith(".") or Path(folder).exists()):
        raise EngineError(
            f"draft model {folder!r} does not exist, or has no config.json: give speculative a model, by its folder"
        )


def engine_arguments(
    method: str = "das",
    drafter: Mapping[str, Any] | str | None = None,
    budget: Mapping[str, Any] | str = DEFAULT_BUDGET,
    **options: Any,
) -> dict[str, Any]:
    """Returns the arguments for a vllm.LLM that drafts by `method` and verifies with keyed noise (noise that depends
    only on seed, position and token): `das.install(); llm = LLM(model, **das.engine_arguments())`.

    options: further ones of EngineSettings: speculative, self_draft, exact, asynchronous. drafter, budget: a string
    stands for {"name": string}, such as drafter="my_module:MyDrafter" (docs/drafters_and_budgets.md).
    This only builds arguments and changes nothing. Raises EngineError for the method stock, an unknown method or a
    missing package. Raises ValueError or TypeError for an unknown option, and for a bad drafter or budget.
    """
    if unknown := set(options) - set(OPTIONS):
        raise TypeError(f"engine_arguments() has no option {min(unknown)}: choose {', '.join(OPTIONS)}")
    settings = EngineSettings(
        model="",
        method=method,
        drafter={"name": drafter} if isinstance(drafter, str) else drafter or {},
        budget={"name": budget} if isinstance(budget, str) else budget,
        **{name: value for name, value in options.items() if name != "speculative" or value is not None},
    )
    settings.row.speculative(settings)
    return _arguments(settings)


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    if not settings.row.keyed:
        of_vllm = {"speculative_config": dict(settings.speculative)} if settings.speculative else {}
        return {"logprobs_mode": "processed_logprobs", **of_vllm}  # as TRL sets it
    speculative_config = settings.row.speculative(settings)
    if settings.row.model == "draft model":
        check_draft_model(str(settings.speculative.get("model") or ""))
    return {
        # vLLM refuses it for drafters on the host. das turns it on later (das/engine/patches/model_runner.py).
        "async_scheduling": False,
        "logprobs_mode": "processed_logprobs",  # what TRL's importance-sampling correction expects
        "speculative_config": speculative_config,
        "worker_cls": WORKER,
        "additional_config": {"das": settings.das_options.as_dict()},
    }


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Inside the `with` block, these environment variables have these values. Afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def in_this_process() -> dict[str, str]:
    """Returns the environment variables with which vLLM builds an engine in this process, where TRL needs it."""
    return {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # vLLM's ngram drafter runs on numba, which gives this number to OpenMP, and so to torch's kernels. With more
        # threads than in other engines, the kernels would sum in another order.
        "NUMBA_NUM_THREADS": str(torch.get_num_threads()),
    }


def build_engine(settings: EngineSettings, **overrides: Any) -> "LLM":
    """Build the engine. `overrides` are further arguments of vllm.LLM.

    Raises EngineError if the model directory lacks a tokenizer or vLLM refuses the settings. Raises NotInstalled if the
    engine needs `das.install()`, which was not called before.
    """
    directory = Path(settings.model)
    needs_tokenizer = not overrides.get("skip_tokenizer_init", False)
    if needs_tokenizer and directory.is_dir() and not (directory / "tokenizer_config.json").exists():
        raise EngineError(f"policy directory {directory} has no tokenizer (tokenizer_config.json): save it there too")
    if not settings.row.keyed and os.environ.get("VLLM_BATCH_INVARIANT") == "1":
        raise EngineError("stock is vLLM as it comes, and VLLM_BATCH_INVARIANT=1 is set: build it in a new process")
    das_arguments = _arguments(settings)
    stage("makes its engine")
    from vllm import LLM
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    arguments: dict[str, Any] = {
        **{name: getattr(settings, name) for name in OF_VLLM},
        "use_tqdm_on_load": False,  # else each engine draws bars
        "kv_cache_memory_bytes": settings.kv_cache_gib * 2**30 if current_platform.is_cpu() else None,
        **das_arguments,
    }
    # vLLM froze (gc.freeze) the objects of an engine that this process had before. Frozen objects are never collected,
    # so each run of a sweep left a KV cache of a gibibyte behind. Where several processes train together, nothing is
    # collected, because an engine that is collected takes their process group with it.
    if os.environ.get("WORLD_SIZE", "1") == "1":
        gc.unfreeze()
        gc.collect()
    gc.freeze()  # vLLM collects garbage six times while an engine starts: each takes .4 s where all imports count
    try:
        if not settings.row.keyed:  # engines of das check it themselves, wherever they are built
            model_config = EngineArgs(settings.model).create_model_config()
            if reason := head_refusal(model_config):
                raise EngineError(f"{settings.model}: {reason}")
        with variables(in_this_process()):
            return LLM(**arguments | dict(settings.extra) | overrides)
    except ValueError as error:  # raised by vLLM's own checks
        line = reason_of(error)
        raise EngineError(f"vLLM refuses the engine: {line[:400]}{advice(line)}") from error


def warm_up(llm: Any) -> None:
    """Roll out a few short requests, so that code compiled at its first use is compiled. Empties the prefix cache."""
    from vllm import SamplingParams

    stage("warms its engine up")
    params = SamplingParams(temperature=1.0, max_tokens=2, logprobs=0, ignore_eos=True, detokenize=False)
    prompt: Any = {"prompt_token_ids": [0]}
    for requests in (2, 1):
        llm.generate([prompt] * requests, params, use_tqdm=False)
    llm.reset_prefix_cache()
