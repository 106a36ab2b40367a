"""Build what a run needs from its config: engine settings, policy directory, dataset, reward."""

import json
import os
from collections.abc import Callable
from dataclasses import fields
from math import lcm
from pathlib import Path
from typing import Any

from datasets import Dataset
from omegaconf import DictConfig

from das.budget import make_budget
from das.budget.schedule import LongestFirst
from das.drafter import HistoryDrafter
from das.engine.build import EngineSettings, speculative_config
from das.engine.install import install
from das.engine.versions import require_supported
from das.training import ranks
from experiments.harness import policy_folder
from experiments.problems import load
from experiments.run.checks import check_values
from experiments.run.errors import CONFIGS, UserError, reading
from experiments.run.plain import plain
from rewards.code import CodeReward
from rewards.conversations import BrevityConversations, ConversationReward, JudgedConversations
from rewards.isolation import Limits
from rewards.maths import MathsReward
from rewards.sandbox import Sandbox, SandboxError

WANDB_MODES = ("online", "offline", "off")
GENERATED = ("arithmetic", "programs")  # data made on the spot; all other sets are read
ENGINE_ENVIRONMENT = ("threads", "kv_cache_gib", "processes", "launch")  # of its process, not read by the engine


def engine_settings(config: DictConfig, policy: str) -> EngineSettings:
    """The arm's engine. Raises UserError, in one line, for values that cannot be."""
    engine = {key: value for key, value in plain(config.engine).items() if key not in ENGINE_ENVIRONMENT}
    drafter = plain(config.drafter)
    unit = drafter.pop("unit")
    if drafter["warm"] is not None:
        drafter["warm"] = str(ranks.own_file(Path(drafter["warm"])))
    if unit not in ("epoch", "step"):
        raise UserError(f"drafter.unit={unit}: choose epoch or step")
    if drafter["window"] < 0:
        raise UserError(f"drafter.window={drafter['window']}: must be 0 (no history) or more {unit}s")
    budget = plain(config.arm.get("budget") or config.budget)
    if config.arm.method == "das":
        try:
            make_budget(budget)
            HistoryDrafter(**{**drafter, "warm": None})
        except (ValueError, TypeError) as error:
            raise UserError(str(error)) from error
        if drafter["warm"] is not None:
            with reading(Path(drafter["warm"])):
                HistoryDrafter(**drafter)
                policy_folder.check_history(Path(drafter["warm"]), policy)
    return EngineSettings(
        model=policy,
        method=config.arm.method,
        seed=config.seed,
        drafter=drafter,
        budget=budget,
        speculative=dict(config.arm.speculative),
        **engine,
    )


def responses_per_step(config: DictConfig) -> int:
    """Responses of a training step, over all processes."""
    trainer = config.trainer
    accumulated = trainer.get("gradient_accumulation_steps", 1)
    return int(trainer.per_device_train_batch_size * accumulated * config.engine.get("processes", 1))


def problems_per_step(config: DictConfig) -> int:
    """Problems of a training step, over all processes."""
    return responses_per_step(config) // int(config.trainer.num_generations)


def schedule(config: DictConfig) -> LongestFirst | None:
    """In which order requests get slots; None: as given. Raises UserError for an unknown word."""
    if config.schedule not in ("longest_first", "given"):
        raise UserError(f"schedule={config.schedule}: choose longest_first or given")
    return LongestFirst() if config.schedule == "longest_first" else None


def prepare(config: DictConfig) -> None:
    """Set threads and environment for the engine, and patch vLLM. Call it before an engine is built."""
    install(config.engine.kv_cache_gib, int(config.engine.threads), config.engine.batch_invariant)


def check(config: DictConfig) -> None:
    """Refuse, before any work is done, a config that cannot run. Raises UserError or EngineError in one line."""
    check_values(config)
    if config.wandb not in WANDB_MODES:
        raise UserError(f"wandb={config.wandb}: choose one of {', '.join(WANDB_MODES)}")
    batch, siblings = responses_per_step(config), config.trainer.num_generations
    if siblings < 2 or batch % siblings:
        raise UserError(
            f"responses a step, {batch} (trainer.per_device_train_batch_size x gradient_accumulation_steps x "
            f"engine.processes), must be a multiple of trainer.num_generations={siblings}, which must be 2 or more"
        )
    if config.data.problems is not None and config.data.problems < problems_per_step(config):
        raise UserError(
            f"data.problems={config.data.problems}: a step takes {batch // siblings}; name at least as many"
        )
    if config.policy.path is not None:
        policy_folder.check(config.policy.path, int(config.engine.max_model_len))
    if config.trainer.max_completion_length >= config.engine.max_model_len:
        raise UserError(
            f"trainer.max_completion_length={config.trainer.max_completion_length} leaves no room for a prompt: "
            f"raise engine.max_model_len={config.engine.max_model_len} above it"
        )
    if config.trainer.get("trust_remote_code"):
        raise UserError("trainer.trust_remote_code=true: code that comes with a model is never run")
    schedule(config)
    check_checkpoints(config)
    check_reward(config)
    require_supported()
    speculative_config(engine_settings(config, str(config.policy.path)))
    check_data(config)


def check_data(config: DictConfig) -> None:
    """Refuse data that cannot be had. Raises UserError."""
    if config.data.name in GENERATED:
        if not isinstance(config.data.problems, int):
            raise UserError(f"data.problems={config.data.problems}: must be a whole number")
        if not any(mix(config).values()):
            raise UserError(f"data.weights={config.data.weights}: one at least must be above 0")
    elif "columns" not in config.data:
        known = sorted(path.stem for path in (CONFIGS / "data").glob("*.yaml"))
        raise UserError(f"data={config.data.name}: choose {', '.join(known)}")
    else:
        load.check(plain(config.data))


def check_processes(config: DictConfig) -> None:
    """Refuse a run that was not launched as `config.engine.processes` says, or that splits groups between processes.

    Raises UserError.
    """
    asked, launched = int(config.engine.processes), ranks.count()
    if launched == 1 < asked:
        raise UserError(
            f"engine.processes={asked}, but run.py was started alone: python -m {config.engine.launch} run.py ..."
        )
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        raise UserError("DeepSpeed keeps weights where das cannot compare them: launch with FSDP (launch/fsdp.yaml)")
    if launched != asked:
        raise UserError(f"engine.processes={asked}, but {launched} were launched: set engine.processes={launched}")
    if asked > 1 and (config.checkpoint.every or config.resume is not None):
        raise UserError(f"engine.processes={asked}: several processes have no checkpoints yet; set checkpoint.every=0")
    if problems_per_step(config) % asked:
        raise UserError(
            f"a step's {problems_per_step(config)} problems cannot be shared out equally among {asked} processes: "
            "change trainer.per_device_train_batch_size or trainer.gradient_accumulation_steps"
        )


def check_checkpoints(config: DictConfig) -> None:
    """Refuse checkpoints that could not be gone on from. Raises UserError."""
    every, keep = config.checkpoint.every, config.checkpoint.keep
    for name, value, least in (("every", every, 0), ("keep", keep, 2)):
        if not isinstance(value, int) or value < least:
            raise UserError(f"checkpoint.{name}={value}: must be a whole number, {least} or more")
    accumulated = config.trainer.get("gradient_accumulation_steps", 1)
    generation = config.trainer.get("steps_per_generation", accumulated) * config.trainer.get("num_iterations", 1)
    if every * accumulated % generation:  # responses generated for several steps are in no checkpoint
        together = lcm(generation, accumulated) // accumulated
        raise UserError(
            f"checkpoint.every={every}: must be a multiple of {together}, the steps that share a generation"
        )


def check_reward(config: DictConfig) -> None:
    """Refuse a reward that cannot judge the data, or a sandbox this machine cannot give. Raises UserError."""
    data, name, judge = config.data.name, config.reward.name, config.data.judged_by
    if judge not in ("maths", "code"):
        raise UserError(f"data.judged_by={judge}: choose maths or code")
    if name not in (judge, "brevity"):
        raise UserError(f"reward={name} cannot judge data={data}: choose {judge} or brevity")
    if name == "code":
        try:
            sandbox(config, parallel=min(1, config.reward.parallel)).close()
        except SandboxError as error:
            raise UserError(str(error)) from error


def sandbox(config: DictConfig, parallel: int) -> Sandbox:
    """The sandbox of `config.reward`. Raises UserError for limits that cannot be, SandboxError where there is none."""
    limits = plain(config.reward.limits)
    known = [field.name for field in fields(Limits)]
    if unknown := limits.keys() - set(known):
        raise UserError(f"reward.limits has no {', '.join(sorted(unknown))}: it has {', '.join(known)}")
    for name, value in (("parallel", parallel), *((f"limits.{key}", value) for key, value in limits.items())):
        if not isinstance(value, (int, float) if name == "limits.wall_s" else int) or not 0 < value < 1 << 20:
            raise UserError(f"reward.{name}={value}: must be a whole number above 0 (wall_s: any), and a sane one")
    return Sandbox(parallel, Limits(**limits), config.reward.isolation)


def policy_directory(config: DictConfig, progress: Callable[[str], None]) -> str:
    """Where the policy lies: made on the spot for `policy=small`, else the configured directory or hub id."""
    if config.policy.path is not None:
        return str(config.policy.path)
    from experiments.small_policy.small import SmallPolicyConfig, build_small_policy

    policies = Path(config.cache) / "policies"
    policy = build_small_policy(SmallPolicyConfig(), policies, progress)
    if config.data.judged_by == "code":
        from experiments.small_policy.programs.policy import build_programs_policy

        policy = build_programs_policy(policy, policies, progress)
    return str(policy)


def mix(config: DictConfig) -> dict[int, float]:
    """Steps of a problem's chain -> weight."""
    if len(config.data.chain_steps) != len(config.data.weights):
        raise UserError("data.chain_steps and data.weights must be equally long: a weight for each length of chain")
    return {int(n): float(w) for n, w in zip(config.data.chain_steps, config.data.weights, strict=True)}


def dataset(config: DictConfig, policy: str, note: Callable[[str], None] | None = None) -> Dataset:
    """Rows: prompt (conversational), problem_id, and what the reward needs: answer or tests.

    policy: whose tokenizer measures prompts. note: hears in one line what a published set left out, and why.
    """
    try:
        if config.data.name == "programs":
            from experiments.small_policy.programs.task import make_program_problems

            programs = make_program_problems(config.data.problems, config.seed, mix(config), split="training")
            return Dataset.from_list([{**_row(problem), "tests": problem.tests} for problem in programs])
        if config.data.name == "arithmetic":
            from experiments.small_policy.arithmetic import make_training_problems

            problems = make_training_problems(config.data.problems, seed=config.seed, mix=mix(config))
            return Dataset.from_list([{**_row(problem), "answer": problem.answer} for problem in problems])
    except ValueError as error:  # more problems than there are
        raise UserError(f"data.problems={config.data.problems}: {error}") from error
    room = int(config.engine.max_model_len) - int(config.trainer.max_completion_length)
    template = json.dumps(plain(config.trainer.chat_template_kwargs))
    rows, said = load.load(json.dumps(plain(config.data)), int(config.seed), room, policy, template)
    if note is not None:
        note(said)
    if len(rows) < problems_per_step(config):
        raise UserError(f"{said}; a step takes {problems_per_step(config)}")
    return rows


def _row(problem: Any) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": problem.question}], "problem_id": problem.problem_id}


def reward(config: DictConfig) -> ConversationReward:
    """The reward in the form in which TRL calls it. Its workers and judges start at the first call."""

    def maths_workers() -> MathsReward:
        return MathsReward(config.reward.parallel, config.reward.timeout_s)

    def judges() -> CodeReward:
        return CodeReward(sandbox(config, config.reward.parallel))

    rewards: dict[str, ConversationReward] = {
        "maths": JudgedConversations(maths_workers, "answer"),
        "code": JudgedConversations(judges, "tests"),
        "brevity": BrevityConversations(),
    }
    if config.reward.name not in rewards:
        raise UserError(f"reward={config.reward.name}: choose {', '.join(rewards)}")
    return rewards[config.reward.name]
