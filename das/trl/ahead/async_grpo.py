"""Let TRL's AsyncGRPOTrainer roll out on an engine of das in a process of its own, in place of TRL's server."""

from collections.abc import Callable, Mapping
from typing import Any

from das import ranks
from das.engine.build import EngineSettings
from das.errors import EngineError
from das.trl.ahead.fixed_lag_worker import FixedLagWorker, samples_per_step
from das.trl.ahead.tree_attention import one_sample, use_tree_sdpa
from das.trl.queued_generation import QueuedGeneration
from das.weights.weight_check import PROBE


def give_engine(trainer: Any, backend: Callable[..., QueuedGeneration], lag: int, logged: tuple[str, ...]) -> None:
    """Let a new AsyncGRPOTrainer roll out on an engine of `backend`, not on a server. logged: entries of rollout_row
    that go into TRL's logs."""
    args = trainer.args
    if trainer._is_vlm:
        raise EngineError("AsyncGRPOTrainer with das trains policies of text only, and this one sees images")
    if trainer.accelerator.device.type != "cuda":
        use_tree_sdpa(trainer.model)
    generation = backend(
        model=trainer.model,
        accelerator=trainer.accelerator,
        processing_class=trainer.processing_class,
        mode="colocate",
        gpu_memory_utilization=EngineSettings.gpu_memory_utilization,
        max_model_length=None,
        max_num_seqs=samples_per_step(args),
        model_impl="auto",
        trust_remote_code=args.trust_remote_code,
        repetition_penalty=args.repetition_penalty,
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        max_completion_length=args.max_completion_length,
        logprobs=0,
    )
    generation.forward_arguments = one_sample(len(PROBE), trainer.accelerator.device)
    trainer.num_generations = args.num_generations  # QueuedGeneration reads it here, as in GRPOTrainer
    trainer.rollout_worker = FixedLagWorker(trainer, generation, lag, logged)
    trainer.rollout_queue = trainer.rollout_worker.rollout_buffer
    trainer.weight_transfer = None  # QueuedGeneration copies the weights when a rollout is submitted


def async_problem(arguments: Mapping[str, Any], lag: int, clustered: bool) -> str:
    """Returns one line that says why rollouts at a fixed lag cannot serve an AsyncGRPOTrainer; empty if they can.

    arguments: the arguments of its __init__, by name. lag: in training steps. clustered: whether `cluster=` was given.
    """
    if clustered:
        return "it rolls out on one engine beside it: leave out cluster="
    args = arguments.get("args")
    for name, why in (
        ("tools", "rollouts in several turns call tools between their requests, and so cannot run ahead"),
        ("environment_factory", "rollouts in several turns call tools between their requests, and so cannot run ahead"),
        ("peft_config", "TRL asks a server whether it takes adapters: train the whole policy"),
        ("rollout_worker", "das brings its own"),
        ("weight_transfer", "das brings its own"),
    ):
        if arguments.get(name) is not None:
            return f"{name}: {why}"
    if not arguments.get("reward_funcs"):
        return "reward_funcs: none was given; pass a function, or a list of them"
    if ranks.count() > 1:
        return f"{ranks.count()} processes: rollouts ahead need one process that trains; launch one"
    budget = None if args is None else args.token_budget
    if budget is None or budget > 0:
        return f"token_budget={budget}: a step would train on any number of samples; set token_budget=0"
    assert args is not None
    if args.max_staleness < lag:
        return f"max_staleness={args.max_staleness}: TRL would drop the samples of lag {lag}; set it to {lag} or more"
    if args.weight_sync_steps != 1:
        return f"weight_sync_steps={args.weight_sync_steps}: the lag counts weights of every step; set it to 1"
    if samples_per_step(args) % args.num_generations:
        return (
            f"a step trains on {samples_per_step(args)} samples, which are no whole groups of {args.num_generations}: "
            "make per_device_train_batch_size x gradient_accumulation_steps a multiple of num_generations"
        )
    return ""
