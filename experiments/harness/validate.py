"""Refuse, before any work is done, a config that cannot run."""

from collections.abc import Sequence
from math import lcm

from das import ranks
from das.cluster.connection import require_listener
from das.cluster.messages import ClusterError
from das.engine.build import EngineSettings, check_draft_model
from das.engine.engine_config import BITS
from das.engine.model_code import refuse_model_code
from das.engine.versions import require_supported
from das.trl.lag import ahead_problem
from das.trl.support import QUANTIZED, unsupported
from experiments.harness import heads
from experiments.harness.config import RunConfig
from experiments.harness.data import AGENT, GENERATED, LIBRARY, MADE, weight_of_chain_steps, weight_of_kinds
from experiments.harness.engine import engine_settings, make_schedule
from experiments.harness.evaluation import held_out
from experiments.harness.policies import check_cold_start, check_mtp
from experiments.harness.reward import check_judge
from experiments.harness.validate_policy import check_policy
from experiments.problems import load, reasoning_gym
from experiments.problems.problem_set import COLUMNS
from experiments.run.errors import UserError
from experiments.training.groups import partial_problem

TRAINING = ("compare", "train")  # tasks that roll out with TRL, which calls tools
TRAIN = (*TRAINING, "audit", "soak")  # all tasks that train
DRAFTING = (*TRAINING, "rollout")  # tasks that fail if an arm that should draft does not
WITH_CLUSTER = (*TRAINING, "rollout", "audit")  # tasks that roll out on a cluster
WANDB_MODES = ("online", "offline", "off")


def check(config: RunConfig, in_steps: bool = True) -> None:
    """Check everything that can be checked without an engine. Raises UserError or EngineError with a one-line message.

    in_steps: False for a task that takes all problems at once, so that they need not fill a training step.
    """
    if config.wandb not in WANDB_MODES:
        raise UserError(f"wandb={config.wandb}: choose one of {', '.join(WANDB_MODES)}")
    check_sizes(config)
    problems = config.data.problems
    if in_steps and problems is not None and problems < config.problems_per_step:
        raise UserError(f"data.problems={problems}: a step takes {config.problems_per_step}; ask for at least as many")
    if config.policy.path is not None:
        check_policy(config.policy.path, config.engine.max_model_len)
    if "quantization_config" in (config.trainer.arguments.get("model_init_kwargs") or {}):
        raise UserError(f"trainer.model_init_kwargs: {QUANTIZED}")
    refuse_model_code(config.resolved)
    make_schedule(config.schedule)
    check_checkpoints(config)
    check_ahead(config)
    check_partial(config)
    check_dynamic_sampling(config)
    check_reward(config)
    require_supported()
    heads.check_online(config)
    check_mtp(config)
    check_cold_start(config)
    settings = engine_settings(config, str(config.policy.path))
    check_drafts(config, settings)
    if settings.row.model == "head":
        heads.check_head(config)
    elif settings.row.keyed:
        settings.row.speculative(settings)
    if settings.row.model == "draft model" and config.arm.speculative["model"] is not None:
        check_draft_model(settings.speculative, settings.model)
    check_data(config)
    check_cluster(config)
    held_out.check(config)


def require_bits(exact: str, task: str) -> None:
    """Refuse engines that do not keep bits for a task that compares tokens. exact: engine.exact. Raises UserError."""
    if exact != BITS:
        raise UserError(
            f"task={task} compares tokens, and engine.exact={exact} does not keep them: set engine.exact={BITS}"
        )


def check_sizes(config: RunConfig) -> None:
    """Refuse numbers of responses, problems and tokens that contradict each other. Raises UserError."""
    responses, siblings = config.responses_per_step, config.trainer.num_generations
    if siblings < 2 or responses % siblings:
        raise UserError(
            f"responses a step, {responses} (trainer.per_device_train_batch_size x gradient_accumulation_steps x "
            f"engine.processes), must be a multiple of trainer.num_generations={siblings}, which must be 2 or more"
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
    if config.arm.row.proposes and settings.budget["name"] == "none" and config.task["name"] in DRAFTING:
        raise UserError(
            f"budget=none: arm {config.arm.name} would draft nothing; choose another budget, or use arm=none"
        )


def check_data(config: RunConfig) -> None:
    """Refuse a data set that does not exist, or settings that cannot choose problems from it. Raises UserError."""
    data = config.data
    if data.name in MADE and data.problems is None:
        raise UserError("data.problems=null: must be a whole number, because generated problems have no end")
    if data.name == AGENT:
        check_agent(config)
    if data.name == LIBRARY:
        reasoning_gym.check(data.settings)
    elif data.name == "puzzles":
        weight_of_kinds(data)
    elif data.name in GENERATED:
        if not any(weight_of_chain_steps(data).values()):
            raise UserError(f"data.weights={data.weights}: at least one must be above 0")
    else:
        load.check(data.settings)


def check_agent(config: RunConfig) -> None:
    """Some data needs a policy that calls a tool. Refuse such data for a task that cannot call tools. Raises
    UserError."""
    if config.task["name"] not in TRAINING:
        raise UserError(f"data={AGENT}: task={config.task['name']} calls no tools; choose {' or '.join(TRAINING)}")


def check_cluster(config: RunConfig) -> None:
    """Refuse a cluster that the task, the arm or the data does not allow. Raises UserError."""
    if config.cluster is None:
        return
    if config.task["name"] not in WITH_CLUSTER:
        raise UserError(f"cluster=ray: task={config.task['name']} has its own engine; use {', '.join(WITH_CLUSTER)}")
    if not config.arm.row.keyed:
        raise UserError("cluster=ray: arm=stock is vLLM without das, which a cluster does not start; leave it out")
    if config.data.name == AGENT:
        raise UserError("cluster=ray: rollouts in several turns do not run on a cluster yet; set cluster=none")
    if config.resolved["drafter"].get("warm") is not None:
        raise UserError("cluster=ray: engines of a cluster begin without a history; set drafter.warm=null")
    if config.cluster.address is not None:
        try:
            require_listener(config.cluster.address)
        except ClusterError as error:
            raise UserError(str(error)) from None


def check_processes(config: RunConfig) -> None:
    """Refuse a run that was not launched as `engine.processes` says, or whose problems cannot be divided equally.

    Raises UserError.
    """
    wanted, launched = config.engine.processes, ranks.count()
    of_engine = max(
        config.engine.settings["tensor_parallel_size"], config.trainer.arguments.get("vllm_tensor_parallel_size", 1)
    )
    if of_engine > 1:
        raise UserError(
            f"engine.tensor_parallel_size={of_engine}: run.py trains with engines of one process each; set it to 1, or "
            "use das.speculate() in a script of TRL (docs/trl.md)"
        )
    if launched == 1 < wanted:
        raise UserError(
            f"engine.processes={wanted}, but run.py was started alone: python -m {config.engine.launch} run.py ..."
        )
    if problem := unsupported():
        raise UserError(problem)
    if launched != wanted:
        raise UserError(f"engine.processes={wanted}, but {launched} were launched: set engine.processes={launched}")
    if ranks.asks_for_fsdp() and config.checkpoint.every:
        raise UserError(
            f"checkpoint.every={config.checkpoint.every}: a sharded policy (FSDP) writes no checkpoints yet; set "
            "checkpoint.every=0"
        )
    if config.problems_per_step % wanted:
        raise UserError(
            f"a step's {config.problems_per_step} problems cannot be divided equally among {wanted} processes: "
            "change trainer.per_device_train_batch_size or trainer.gradient_accumulation_steps"
        )


def check_checkpoints(config: RunConfig) -> None:
    """Two steps may train on responses that were generated together. Refuse checkpoints between such steps, because a
    checkpoint does not hold the responses. Raises UserError."""
    arguments, every = config.trainer.arguments, config.checkpoint.every
    accumulated = arguments.get("gradient_accumulation_steps", 1)
    generation = arguments.get("steps_per_generation", accumulated) * arguments.get("num_iterations", 1)
    if every * accumulated % generation:  # no checkpoint holds responses that were generated for several steps
        shared = lcm(generation, accumulated) // accumulated
        raise UserError(f"checkpoint.every={every}: must be a multiple of {shared}, the steps that share a generation")


def check_ahead(config: RunConfig) -> None:
    """Refuse rollouts that run ahead of the training (trainer.lag) and an engine in its own process
    (engine.own_process), if this kind of run cannot have them. Raises UserError."""
    trainer, engine = config.trainer, config.engine
    if not trainer.lag and not engine.own_process:
        return
    setting = f"trainer.lag={trainer.lag}" if trainer.lag else "engine.own_process=true"
    if config.task["name"] not in TRAIN:
        raise UserError(f"{setting}: task={config.task['name']} trains nothing; leave it out")
    if problem := ahead_problem(trainer.lag, trainer.arguments, config.data.name == AGENT, engine.processes):
        raise UserError(f"{setting}: {problem}")
    if engine.own_process and config.cluster is not None:
        raise UserError("engine.own_process=true: engines of cluster=ray have processes of their own; leave it out")
    if engine.own_process and not config.arm.row.keyed:
        raise UserError("engine.own_process=true: arm=stock rolls out in the trainer's process; leave it out")


def check_partial(config: RunConfig) -> None:
    """Refuse groups that are put aside (trainer.partial, trainer.partial_tokens), if this kind of run cannot have them.
    Raises UserError."""
    trainer, engine = config.trainer, config.engine
    if not trainer.partial and not trainer.partial_tokens:
        return
    setting = _partial_setting(config)
    if config.task["name"] not in TRAINING:
        raise UserError(f"{setting}: only {' and '.join(TRAINING)} put groups aside; leave it out")
    beside = engine.own_process or config.cluster is not None
    if problem := partial_problem(trainer.arguments, trainer.lag, config.data.name == AGENT, beside):
        raise UserError(f"{setting}: {problem}")
    if not config.arm.row.keyed:
        raise UserError(f"{setting}: arm=stock has no noise by position, so nothing continues; leave it out")
    if trainer.partial % engine.processes:
        raise UserError(
            f"{setting}: {engine.processes} processes put equally many groups aside; set a multiple of "
            f"{engine.processes}"
        )
    live = (config.responses_per_step + trainer.partial * trainer.num_generations) // engine.processes
    if engine.settings["max_num_seqs"] < live:
        raise UserError(f"{setting}: {live} responses decode at the same time; set engine.max_num_seqs={live}")


def _partial_setting(config: RunConfig) -> str:
    partial, tokens = config.trainer.partial, config.trainer.partial_tokens
    return f"trainer.partial={partial}" if partial else f"trainer.partial_tokens={tokens}"


def check_dynamic_sampling(config: RunConfig) -> None:
    """Refuse further draws (trainer.dynamic_sampling), if this kind of run cannot have them. Raises UserError."""
    trainer, engine = config.trainer, config.engine
    if not trainer.dynamic_sampling:
        return
    setting = f"trainer.dynamic_sampling={trainer.dynamic_sampling}"
    if config.task["name"] not in TRAIN:
        raise UserError(f"{setting}: task={config.task['name']} trains nothing; leave it out")
    if trainer.lag:
        raise UserError(f"{setting}: further draws sample with the newest weights; set trainer.lag=0")
    if trainer.partial or trainer.partial_tokens:
        zero = _partial_setting(config).split("=")[0]
        raise UserError(f"{setting}: groups that are put aside have no rewards yet; set {zero}=0")
    if problem := ahead_problem(0, trainer.arguments, config.data.name == AGENT, engine.processes):
        raise UserError(f"{setting}: {problem}")


def check_reward(config: RunConfig) -> None:
    """Refuse a reward that cannot judge the data, or a sandbox that this machine does not allow. Raises UserError."""
    reward, judge = config.reward, config.data.judged_by
    if judge not in COLUMNS:
        raise UserError(f"data.judged_by={judge}: choose {', '.join(COLUMNS)}")
    if reward.name not in (judge, "brevity", "own"):
        raise UserError(f"reward={reward.name} cannot judge data={config.data.name}: choose {judge} or brevity")
    check_judge(reward)


def refuse_one_arm(config: RunConfig, overrides: Sequence[str]) -> None:
    """Refuse `arm=` in a comparison, which has several arms and would ignore it. Raises UserError.

    A run that is resumed is not refused: an older version may have started it.
    """
    given = [override for override in overrides if override.startswith("arm=")]
    if given and config.task["name"] == "compare" and config.resume is None:
        raise UserError(f"{given[0]}: task=compare has several, arms={list(config.arms)}; name it there, or task=train")
