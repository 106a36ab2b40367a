"""`das.speculate()`: speculative rollouts in an ordinary script with TRL's GRPOTrainer and its colocated vLLM."""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from das.budget import DEFAULT_BUDGET
from das.budget.schedule import LongestFirst
from das.drafter import DEFAULT_UNIT, UNITS, HistoryDrafter
from das.engine import patches
from das.engine.build import EngineError, EngineSettings, speculative_config
from das.engine.install import install
from das.engine.rollout import rollout_row
from das.training.conversations import follow_turns
from das.training.generation import SpeculativeGeneration
from das.training.trainer import SpeculativeGRPOTrainer

LOGGED = ("rollout_s", "tokens_per_pass", "drafted", "accepted", "draft_share")  # in TRL's logs, as das/NAME
PATIENCE = 3  # training rollouts that may pass without an accepted token before a warning


def speculate(
    method: str = "das",
    drafter: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> None:
    """Let the GRPOTrainers that this process builds from now on roll out with drafts and keyed verification.

    Call it before a trainer is built. The trainer needs `use_vllm=True, vllm_mode="colocate"`; the rest of the script
    stays as it is. `das.speculate("off")` ends it: trainers built afterwards are TRL's own, while those already built
    go on as they are. A second call replaces the options of the first.

    While it is on, a GRPOTrainer that does not use vLLM, or that was built before the call, raises EngineError: it
    would roll out without drafts and nobody would notice. Build such a trainer after `das.speculate("off")`. Other
    trainers of TRL are not touched.

    Noise is keyed by `args.seed`, the training step and the request's place in it, so `das.speculate("none")` gives the
    same tokens, rewards, losses and weights without drafts. A row's problem is its `problem_id` or, if it has none, its
    prompt. TRL's logs get das/rollout_s, das/tokens_per_pass, das/drafted, das/accepted and das/draft_share.

    It calls `das.install()`, which sets environment variables and torch's number of threads
    (OMP_NUM_THREADS, or 1). They stay after "off".

    method: what drafts: das | ngram | suffix | none; or off.
    drafter: options of HistoryDrafter that differ from the defaults, and `unit`: what its window counts, "epoch" or
    "step" (a rollout). budget: name and options of a budget in place of `marginal`. engine: fields of EngineSettings in
    place of those that follow from the trainer's arguments.

    Raises EngineError, ValueError or TypeError for impossible options, UnsupportedVersion for other versions of vLLM
    or TRL. Building a trainer raises EngineError for what das cannot be combined with.
    """
    if method == "off":
        if drafter or budget or engine:
            raise ValueError('das.speculate("off") takes no options')
        patches.unpatch_trainer()
        return
    options = dict(drafter or {})
    unit = options.pop("unit", DEFAULT_UNIT)
    if unit not in UNITS:
        raise ValueError(f"drafter unit {unit!r}: choose epoch or step")
    HistoryDrafter(**options)
    gpu = torch.cuda.is_available()
    fields = {
        "method": method,
        "drafter": options,
        "budget": budget or DEFAULT_BUDGET,
        "enforce_eager": not gpu,  # on the CPU compiling costs more than it gains
        "batch_invariant": gpu,  # otherwise drafts change the last bits of logits (docs/exactness.md)
        **(engine or {}),
    }
    settings = EngineSettings(**{"model": "", **fields})
    speculative_config(settings)
    install(batch_invariant=settings.batch_invariant)
    patches.patch_trainer(functools.partial(_build, backend=functools.partial(_backend, fields, unit)), _generate)


def _build(original: Callable[..., None], trainer: Any, *args: Any, backend: Callable[..., Any], **kwargs: Any) -> None:
    """GRPOTrainer.__init__, with `backend` in place of TRL's own."""
    if isinstance(trainer, SpeculativeGRPOTrainer):  # it brings a backend, and announces its rows itself
        original(trainer, *args, **kwargs)
        return
    with patches.generation_backend(backend):
        original(trainer, *args, **kwargs)
    require_backend(trainer)
    follow_turns(trainer)
    # On the trainer and not on its class, so that the trainer still announces its rows after das.speculate("off").
    trainer._generate_and_score_completions = functools.partial(
        generate_and_score, trainer._generate_and_score_completions, trainer
    )


def _backend(fields: Mapping[str, Any], unit: str, *args: Any, **kwargs: Any) -> SpeculativeGeneration:
    """The backend with the engine that `fields` of EngineSettings and TRL's arguments describe."""
    model = kwargs["model"]
    settings = {
        "model": model.name_or_path,
        # vLLM's "auto" takes bfloat16 for a float32 model, but the CPU is exact in float32 only (docs/exactness.md).
        "dtype": "auto" if torch.cuda.is_available() else str(model.dtype).removeprefix("torch."),
        "max_model_len": kwargs["max_model_length"],
        "max_num_seqs": kwargs["max_num_seqs"],
        "gpu_memory_utilization": kwargs["gpu_memory_utilization"],
        "extra": {"model_impl": kwargs["model_impl"], "trust_remote_code": kwargs["trust_remote_code"]},
        **fields,
    }
    return SpeculativeGeneration(
        *args, engine=EngineSettings(**settings), history_unit=unit, schedule=LongestFirst(), **kwargs
    )


def _generate(original: Callable[..., Any], trainer: Any, rows: list[dict[str, Any]]) -> Any:
    """GRPOTrainer._generate_and_score_completions, refused for trainers that were built without das."""
    require_backend(trainer)
    return original(trainer, rows)


def require_backend(trainer: Any) -> None:
    """Raise EngineError, in one line, for a trainer that would roll out without das."""
    if not isinstance(getattr(trainer, "vllm_generation", None), SpeculativeGeneration):
        raise EngineError(
            "this GRPOTrainer does not roll out with das: give its GRPOConfig use_vllm=True and "
            'vllm_mode="colocate" and call das.speculate() before it is built, or das.speculate("off") to go without'
        )


def generate_and_score(original: Callable[..., Any], trainer: Any, rows: list[dict[str, Any]]) -> Any:
    """The trainer's own generation of a batch, announced to the backend before and entered into TRL's logs after."""
    generation: SpeculativeGeneration = trainer.vllm_generation
    generation.announce(trainer, rows)
    scored = original(rows)
    assert generation.last is not None
    row = rollout_row(generation.last)
    metrics = trainer._metrics["eval" if generation.evaluation else "train"]
    for name in LOGGED:
        metrics[f"das/{name}"].append(row[name])
    if not generation.evaluation:
        warn_of_idle_drafts(generation)
    return scored


def warn_of_idle_drafts(generation: SpeculativeGeneration) -> None:
    """After a training rollout: warn, once, if no draft of the first few rollouts was accepted."""
    if generation.engine.method != "none" and generation.rollouts == PATIENCE and not generation.num_accepted:
        warnings.warn(
            f"speculation: {generation.num_drafted} tokens drafted and none accepted in the first {PATIENCE} rollouts; "
            "check the budget, drafter min_prob and window, and the problem ids",
            RuntimeWarning,
            stacklevel=2,
        )
