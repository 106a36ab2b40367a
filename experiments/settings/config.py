"""The settings of a run, made once from Hydra's config, and what excludes what."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NoReturn, Self

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import BeforeValidator, Field, model_validator

from das.cluster.connection import ClusterSettings
from experiments.run.errors import UserError
from experiments.settings import groups
from experiments.settings.checked import Choice, Group, Settings, checked, plain, shown
from experiments.settings.tasks import TASK, TASKS
from experiments.settings.trainer import TrainerConfig

_CHOICES = (groups.BUDGET, groups.CLUSTER, groups.DATA, groups.DRAFTER, groups.REWARD, TASK)
CHOICES: Mapping[str, Choice] = {each.group: each for each in _CHOICES}


# What each setting is to a run, by key or group.
METHOD = ("arm", "drafter", "head", "budget", "engine", "schedule")  # arms of one comparison may differ in it
WORK = ("policy", "data", "reward", "trainer", "cluster", "seed")  # all arms of a comparison do the same
ARMS = ("arms", "vary")  # which arms there are
PLAN = ("experiment", "profile", "paper")  # which runs are made
FREE = ("resume", "checkpoint", "eval", "task", "wandb", "wandb_project", "out", "cache")  # no token of a training
FREE_KEYS = (  # the same, of other groups
    *("engine.weight_check_every", "engine.own_process"),
    *("cluster.engines", "cluster.address", "cluster.silent_s", "cluster.start_s"),
)


class RunConfig(Group):
    """All settings of a run. A comparison has a RunConfig for each arm."""

    arm: groups.ArmConfig
    policy: groups.PolicyConfig
    data: Annotated[groups.DataConfig, BeforeValidator(groups.DATA.made)]
    reward: Annotated[groups.RewardConfig, BeforeValidator(groups.REWARD.made)]
    trainer: TrainerConfig
    engine: groups.EngineConfig
    cluster: Annotated[ClusterSettings | None, BeforeValidator(groups.made_cluster)]
    drafter: Annotated[groups.DrafterConfig, BeforeValidator(groups.DRAFTER.made)]
    head: groups.HeadConfig
    checkpoint: groups.CheckpointConfig
    eval: groups.EvalConfig
    budget: Annotated[Settings, BeforeValidator(groups.made_budget)]
    task: Annotated[Any, BeforeValidator(TASK.made)]
    arms: list[str]
    vary: Settings
    schedule: Literal["longest_first", "given"]
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)]  # NumPy's range
    resume: str | None  # folder of the run to resume
    wandb: Literal["online", "offline", "off"]
    wandb_project: str
    out: str
    cache: str  # folder of what is made on the spot, such as draft heads
    profile: Literal["small", "smoke", "paper"]
    paper: Literal["das", "efficient_rollout", "nemo_rl"] | None
    experiment: Settings = Field(default_factory=dict)
    resolved: Settings = Field(default_factory=dict)  # the whole config as plain values, as config.yaml records it

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for rule in RULES:
            rule(self)
        return self

    @property
    def responses_per_step(self) -> int:
        """Number of responses in a training step, over all processes."""
        return responses_per_step(self.trainer.arguments, self.engine.processes)

    @property
    def problems_per_step(self) -> int:
        """Number of problems in a training step, over all processes."""
        return problems_per_step(self.trainer.arguments, self.engine.processes)

    def with_problems(self, count: int) -> "RunConfig":
        """Return this config with another number of problems. data.problems=null asks for all problems; a run then
        records in this way how many there are."""
        resolved = {**self.resolved, "data": {**self.resolved["data"], "problems": count}}
        return self.model_copy(update={"data": self.data.model_copy(update={"problems": count}), "resolved": resolved})


def responses_per_step(trainer: Settings, processes: int) -> int:
    """Number of responses in a training step over all processes. trainer: arguments of TRL's GRPOConfig."""
    accumulated = trainer.get("gradient_accumulation_steps", 1)
    return int(trainer["per_device_train_batch_size"] * accumulated * processes)


def problems_per_step(trainer: Settings, processes: int) -> int:
    """Number of problems in a training step over all processes. trainer: arguments of TRL's GRPOConfig."""
    return responses_per_step(trainer, processes) // int(trainer["num_generations"])


def steps_per_epoch(num_problems: int, problems_per_step: int) -> int:
    """Number of steps that go once through all problems. Problems that do not fill a step are left out."""
    return max(1, num_problems // problems_per_step)


def run_config(composed: DictConfig) -> RunConfig:
    """Make the settings of a run from Hydra's config. Raises UserError with a one-line message."""
    try:
        resolved = plain(composed)
    except OmegaConfBaseException as error:  # an interpolation is wrong
        raise UserError(str(error)) from error
    return checked(RunConfig, resolved | {"resolved": resolved}, "")


# ---- what excludes what ----


def greedy(config: RunConfig) -> None:
    """`trainer.temperature=0` is for what trains nothing: `task=evaluate`, and comparisons with `task.train=false`.
    `trainer.generation_kwargs` has no `seed`."""
    task = config.task
    if config.trainer.temperature == 0 and not (task.name == "evaluate" or (task.name == "compare" and not task.train)):
        refuse("trainer.temperature", 0, "must be above 0 where a policy trains: greedy is for task=evaluate")
    if (seed := (config.trainer.generation_kwargs or {}).get("seed")) is not None:
        made = "each response has a seed of its own, made from the setting seed; set that"
        refuse("trainer.generation_kwargs.seed", seed, made)


def ahead(config: RunConfig) -> None:
    """`trainer.lag` and `engine.own_process` are for tasks that train; `engine.own_process` excludes `cluster=ray` and
    `arm=stock`."""
    for key, value in ahead_of(config).items():
        if value and not TASKS[config.task.name].trains:
            refuse(key, value, f"task={config.task.name} trains nothing; leave it out")
    if config.engine.own_process and config.cluster is not None:
        refuse("engine.own_process", True, "engines of cluster=ray have processes of their own; leave it out")
    if config.engine.own_process and not config.arm.row.keyed:
        refuse("engine.own_process", True, "arm=stock rolls out in the trainer's process; leave it out")


def evaluated(config: RunConfig) -> None:
    """`eval.every` is for tasks that train, and for one process."""
    every = config.eval.every
    if every and not TASKS[config.task.name].trains:
        refuse("eval.every", every, f"task={config.task.name} trains nothing; set eval.every=0 (or task=evaluate)")
    if every and config.engine.processes > 1:
        alone = "several processes cannot evaluate yet"
        refuse("eval.every", every, f"{alone}; set eval.every=0, and measure the final policy with task=evaluate")


def clustered(config: RunConfig) -> None:
    """`cluster=ray` is for `task=rollout` and tasks that train; it excludes `arm=stock` and `drafter.warm`."""
    if config.cluster is None:
        return
    task = TASKS[config.task.name]
    if not task.trains and not task.rolls_out:
        refuse("cluster", "ray", f"task={config.task.name} starts no cluster; set cluster=none")
    if not config.arm.row.keyed:
        refuse("cluster", "ray", "arm=stock is vLLM without das, which a cluster does not start; leave it out")
    if config.drafter.warm:
        refuse("cluster", "ray", "engines of a cluster begin without a history; set drafter.warm=null")


def drafted(config: RunConfig) -> None:
    """`drafter.warm` excludes self-drafts. `arm.online` is for EAGLE-3 heads, and for one process."""
    arm = config.arm
    if config.drafter.warm and arm.row.self_drafts:
        refuse("drafter.warm", config.drafter.warm, "self_draft drafts without a history; use arm=das")
    if arm.online and arm.row.model != "head":
        refuse("arm.online", True, f"only an EAGLE-3 head learns in the run, and arm {arm.name} has none")
    if arm.online and config.engine.processes > 1:
        refuse("arm.online", True, "what drafts is trained in one process: set engine.processes=1")


def compared(config: RunConfig) -> None:
    """`task.lock_step` is for one process; `task.train_once` and comparisons in which nobody trains
    (`task.train=false`, `task.recorded`) need it. If nobody trains, `task.train_once` and `eval.every` are off.
    `task.recorded` excludes `trainer.lag`, `engine.own_process`, `cluster=ray` and `drafter.warm`."""
    task = config.task
    if task.name != "compare":
        return
    if task.lock_step and config.engine.processes > 1:
        refuse("task.lock_step", True, "all arms run at once, a process each; set task.lock_step=false")
    if task.train_once and not task.lock_step:
        refuse("task.train_once", True, "arms need the first one's weights of each step; set task.lock_step=true")
    if task.train and not task.recorded:
        return
    key, value = ("task.recorded", task.recorded) if task.recorded else ("task.train", False)
    if task.train_once or config.eval.every:
        refuse(key, value, "nobody trains; leave task.train_once and eval.every out")
    if not task.lock_step:
        refuse(key, value, "arms that do not train roll out in turns; set task.lock_step=true")
    if task.recorded and (any(ahead_of(config).values()) or config.cluster or config.drafter.warm):
        only = "trainer.lag, engine.own_process, cluster=ray and drafter.warm"
        refuse(key, value, f"an engine emits the recorded text step by step; leave {only} out")


def timed(config: RunConfig) -> None:
    """`task.step_ms` excludes `task.latency`."""
    if config.task.name == "advise" and config.task.step_ms is not None and config.task.latency is not None:
        refuse("task.step_ms", config.task.step_ms, "give one of task.step_ms and task.latency")


RULES: tuple[Callable[[RunConfig], None], ...] = (greedy, ahead, evaluated, clustered, drafted, compared, timed)


def ahead_of(config: RunConfig) -> dict[str, Any]:
    """Return the settings of rollouts ahead of the training."""
    return {"trainer.lag": config.trainer.lag, "engine.own_process": config.engine.own_process}


def refuse(key: str, value: Any, words: str) -> NoReturn:
    """Raise UserError with the line about a setting."""
    raise UserError(f"{key}={shown(value)}: {words}")
