"""Refuse, before any work is done, a config that cannot run."""

from collections.abc import Sequence
from math import lcm

from das.cluster.connection import require_listener
from das.engine.model_code import refuse_model_code
from das.engine.settings import EngineSettings
from das.engine.versions import require_supported
from das.general import ranks
from das.general.errors import ClusterError
from das.trl.lag import ahead_problem
from das.trl.support import unsupported
from experiments import problem_sets
from experiments.arm import evaluation
from experiments.arm.engine import engine_settings
from experiments.arm.models import check_head, check_mtp, check_policy
from experiments.arm.reward import check_judge
from experiments.run.errors import UserError
from experiments.settings.checked import shown
from experiments.settings.config import RunConfig, ahead_of
from experiments.settings.groups import ProblemSet
from experiments.settings.tasks import TASKS


def check(config: RunConfig, in_steps: bool = True) -> None:
    """Check everything that can be checked without an engine. Raises UserError or EngineError with a one-line message.

    in_steps: False for a task that takes all problems at once, so that they need not fill a training step.
    """
    check_sizes(config)
    problems = config.data.problems
    if in_steps and problems is not None and problems < config.problems_per_step:
        raise UserError(f"data.problems={problems}: a step takes {config.problems_per_step}; ask for at least as many")
    if config.policy.path is not None:
        check_policy(config.policy.path, config.engine.max_model_len)
    refuse_model_code(config.resolved)
    check_checkpoints(config)
    check_rollouts(config)
    check_reward(config)
    require_supported()
    check_mtp(config)
    settings = engine_settings(config, str(config.policy.path))
    check_drafts(config, settings)
    if settings.row.model == "head":
        check_head(config)
    elif settings.row.keyed:
        settings.row.speculative(settings)
    if isinstance(config.data, ProblemSet):
        problem_sets.check(config.data.given)
    check_cluster(config)
    evaluation.check(config)


def check_sizes(config: RunConfig) -> None:
    """Refuse numbers of responses, problems and tokens that contradict each other. Raises UserError."""
    responses, siblings = config.responses_per_step, config.trainer.num_generations
    if responses % siblings:
        size = config.trainer.per_device_train_batch_size
        raise UserError(
            f"trainer.per_device_train_batch_size={size}: a step has {responses} responses, no multiple of "
            f"trainer.num_generations={siblings}"
        )
    if config.trainer.max_completion_length >= config.engine.max_model_len:
        raise UserError(
            f"trainer.max_completion_length={config.trainer.max_completion_length} leaves no room for a prompt: "
            f"raise engine.max_model_len={config.engine.max_model_len} above it"
        )


def check_drafts(config: RunConfig, settings: EngineSettings) -> None:
    """Refuse settings with which the arm cannot draft although it should. Raises UserError."""
    if "speculative_config" in settings.extra:
        raise UserError("engine.extra.speculative_config: the arm makes vLLM's speculative_config; set arm.speculative")
    if config.arm.row.proposes and settings.budget["name"] == "none" and TASKS[config.task.name].rolls_out:
        raise UserError(
            f"budget=none: arm {config.arm.name} would draft nothing; choose another budget, or use arm=none"
        )


def check_cluster(config: RunConfig) -> None:
    """Refuse the address of a Ray that does not answer. Raises UserError."""
    if config.cluster is not None and config.cluster.address is not None:
        try:
            require_listener(config.cluster.address)
        except ClusterError as error:
            raise UserError(str(error)) from None


def check_processes(config: RunConfig) -> None:
    """Refuse a run that was not launched as `engine.processes` says, or whose problems cannot be divided equally.

    Raises UserError.
    """
    wanted, launched = config.engine.processes, ranks.count()
    of_engine = max(config.engine.tensor_parallel_size, config.trainer.vllm_tensor_parallel_size)
    if of_engine > 1:
        raise UserError(
            f"engine.tensor_parallel_size={of_engine}: run.py trains with engines of one process each; set it to 1, or "
            "use das.speculate() in a script of TRL (docs/trl.md)"
        )
    if launched != wanted:
        how = f"python -m {config.engine.launch} run.py ..." if launched == 1 else f"set engine.processes={launched}"
        raise UserError(f"engine.processes={wanted}, but {launched} were launched: {how}")
    if problem := unsupported():
        raise UserError(problem)
    if ranks.is_set("ACCELERATE_USE_DEEPSPEED"):
        raise UserError(
            "run.py compares final weights and optimizers, which DeepSpeed keeps in a form of its own: launch with "
            "FSDP 2 (launch/fsdp.yaml), or use das.speculate() in a script of TRL, where DeepSpeed works"
        )
    if ranks.asks_for_fsdp() and not ranks.fsdp_on_cpu() and config.checkpoint.every:
        raise UserError(
            f"checkpoint.every={config.checkpoint.every}: run.py's checkpoints of a policy that accelerate shards "
            "(FSDP on GPUs) were never tried; set checkpoint.every=0"
        )
    if config.problems_per_step % wanted:
        raise UserError(
            f"a step's {config.problems_per_step} problems cannot be divided equally among {wanted} processes: "
            "change trainer.per_device_train_batch_size or trainer.gradient_accumulation_steps"
        )


def check_checkpoints(config: RunConfig) -> None:
    """Two steps may train on responses that were generated together. Refuse checkpoints between such steps, because a
    checkpoint does not hold the responses. Raises UserError."""
    every, accumulated = config.checkpoint.every, config.trainer.gradient_accumulation_steps
    generation = config.trainer.steps_of_generation
    if every * accumulated % generation:  # no checkpoint holds responses that were generated for several steps
        shared = lcm(generation, accumulated) // accumulated
        raise UserError(
            f"checkpoint.every={every}: must be a multiple of {shared}, the steps that share a generation "
            "(trainer.steps_per_generation)"
        )


def check_rollouts(config: RunConfig) -> None:
    """Refuse rollouts ahead that this training cannot have. Raises UserError."""
    problem = ahead_problem(
        config.trainer.lag, config.trainer.arguments, tools=False, processes=config.engine.processes
    )
    for key, value in ahead_of(config).items():
        if value and problem:
            raise UserError(f"{key}={shown(value)}: {problem}")


def check_reward(config: RunConfig) -> None:
    """Refuse a reward that cannot judge the data, or a sandbox that this machine does not allow. Raises UserError."""
    reward, judge = config.reward, config.data.judged_by
    if reward.name not in (judge, "brevity", "own"):
        raise UserError(f"reward={reward.name} cannot judge data={config.data.name}: choose {judge} or brevity")
    check_judge(reward)


def refuse_one_arm(config: RunConfig, overrides: Sequence[str]) -> None:
    """Refuse `arm=` in a comparison, which has several arms and would ignore it. Raises UserError."""
    given = [override for override in overrides if override.startswith("arm=")]
    if given and config.task.name == "compare":
        raise UserError(f"{given[0]}: task=compare has several, arms={list(config.arms)}; name it there, or task=train")
