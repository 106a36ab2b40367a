"""Build a vLLM engine. It verifies by keyed noise and drafts by the method it is given, or it is vLLM as it comes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from das.budget import DEFAULT_BUDGET, make_budget
from das.draft_round import BLOCKS_A_TREE
from das.drafter import HistoryDrafter
from das.engine import heads, patches

if TYPE_CHECKING:
    from vllm import LLM


PROPOSER = "das.engine.proposer.DasProposer"  # what drafts with the method das
STOCK = "stock"  # the method of an engine without das (das/engine/stock.py)


class EngineError(RuntimeError):
    """An engine cannot be built with these settings. The message says what to change."""


@dataclass(frozen=True)
class EngineSettings:
    """What an engine needs to know. Sizes are in tokens unless the comment gives another unit."""

    model: str  # directory or hub id
    method: str = "none"  # what drafts: none | das | ngram | suffix | eagle3; or stock: vLLM as it comes, without das
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32  # requests that decode at once
    max_num_batched_tokens: int = 4096
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enforce_eager: bool = True
    gpu_memory_utilization: float = 0.1  # fraction of device memory (of host memory on the CPU)
    tensor_parallel_size: int = 1
    batch_invariant: bool = False  # vLLM's batch-invariant kernels (GPU)
    branch_blocks: int = 0  # KV blocks for drafts that branch, 8 for each request that may get one; 0: chains
    weight_check_every: int = 4  # syncs within which every weight is compared with the trainer's; 1: all each time
    seed: int = 0
    drafter: Mapping[str, Any] = field(default_factory=dict)  # options of HistoryDrafter that differ from its defaults
    budget: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_BUDGET)  # name and options of the budget policy
    speculative: Mapping[str, Any] = field(default_factory=dict)  # further settings of vLLM's own methods
    extra: Mapping[str, Any] = field(default_factory=dict)  # further arguments of vllm.LLM, passed on unchanged

    def __post_init__(self) -> None:
        if 0 < self.branch_blocks < BLOCKS_A_TREE:
            raise ValueError(
                f"branch_blocks={self.branch_blocks}: a draft that branches needs {BLOCKS_A_TREE}; set it to "
                f"{BLOCKS_A_TREE} or more, or to 0 for chains"
            )


def speculative_config(settings: EngineSettings) -> dict[str, Any] | None:
    """vLLM's speculative_config for the method. Raises EngineError for an unknown method or a missing package."""
    match settings.method:
        case "none":
            return None
        case "das":
            max_draft_tokens = make_budget(settings.budget).max_draft_tokens
            return {
                "method": "custom_class",
                "model": PROPOSER,
                "num_speculative_tokens": max_draft_tokens,
            }
        case "ngram":
            return {"method": "ngram", **settings.speculative}
        case "suffix":
            if find_spec("arctic_inference") is None:
                raise EngineError("arm suffix needs arctic-inference, which is not installed: run `make peers`")
            return {"method": "suffix", **settings.speculative}
        case "eagle3":
            return _eagle3(settings.speculative)
        case "stock":
            raise EngineError(
                "stock is vLLM as it comes, without das: leave das.install() and das.engine_arguments() out, or call "
                'das.speculate("off"); in experiments it is arm=stock'
            )
        case other:
            raise EngineError(f"unknown speculation method {other!r}: choose none, das, ngram, suffix or eagle3")


def _eagle3(speculative: Mapping[str, Any]) -> dict[str, Any]:
    if not speculative.get("model"):
        raise EngineError("eagle3 needs a head: set model in its speculative settings to the head's folder")
    if problem := heads.depth_problem(speculative.get("num_speculative_tokens")):
        raise EngineError(problem)
    return {"method": "eagle3", **speculative}


def engine_arguments(
    method: str = "das",
    drafter: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] = DEFAULT_BUDGET,
    speculative: Mapping[str, Any] | None = None,
    branch_blocks: int = 0,
) -> dict[str, Any]:
    """Arguments for a vllm.LLM that verifies by keyed noise and drafts by `method`:
    `das.install(); llm = LLM(model, **das.engine_arguments())`.

    The parameters mean what they mean in EngineSettings. This only builds arguments and changes nothing.
    Raises EngineError for stock, for an unknown method or a missing package, ValueError or TypeError for a bad drafter
    or budget, or too few blocks for a branch.
    """
    drafter = drafter or {}
    settings = EngineSettings(
        model="",
        method=method,
        drafter=drafter,
        budget=budget,
        speculative=speculative or {},
        branch_blocks=branch_blocks,
    )
    speculative_config(settings)
    HistoryDrafter(**drafter)  # refuses bad options before anything is built
    return _arguments(settings)


def _arguments(settings: EngineSettings) -> dict[str, Any]:
    if settings.method == STOCK:
        return {"logprobs_mode": "processed_logprobs"}  # as TRL sets it
    das: dict[str, Any] = {"drafter": dict(settings.drafter), "budget": dict(settings.budget)}
    if settings.branch_blocks:
        das["branch_blocks"] = settings.branch_blocks
    return {
        "async_scheduling": False,  # vLLM turns it off for drafts; engines must differ in their drafts only
        "logprobs_mode": "processed_logprobs",  # what TRL's importance-sampling correction expects
        "speculative_config": speculative_config(settings),
        "worker_cls": patches.WORKER,
        "additional_config": {"das": das},
    }


def build_engine(settings: EngineSettings, **overrides: Any) -> "LLM":
    """Build the engine. `overrides` are further arguments of vllm.LLM.

    Raises EngineError when the model directory lacks a tokenizer or vLLM refuses the settings, NotInstalled when the
    engine needs `das.install()` and that was not called before.
    """
    directory = Path(settings.model)
    needs_tokenizer = not overrides.get("skip_tokenizer_init", False)
    if needs_tokenizer and directory.is_dir() and not (directory / "tokenizer_config.json").exists():
        raise EngineError(f"policy directory {directory} has no tokenizer (tokenizer_config.json): save it there too")
    das_arguments = _arguments(settings)
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "enable_chunked_prefill": settings.enable_chunked_prefill,
        "enforce_eager": settings.enforce_eager,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "seed": settings.seed,
        **das_arguments,
    }
    try:
        return LLM(**arguments | dict(settings.extra) | overrides)
    except ValueError as error:  # raised by vLLM's own checks
        raise EngineError(f"vLLM refuses the engine: {' '.join(str(error).split())[:400]}") from error
