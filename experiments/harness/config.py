"""The config as frozen, typed dataclasses. `run_config` makes them once from Hydra's config.

configs/ documents every setting with its unit or source. A dataclass here lists the settings that the code reads.
Settings that are passed on unchanged (to TRL's GRPOConfig, the engine, a drafter or a budget) stay mappings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, TypeVar

from omegaconf import DictConfig

from das.cluster.settings import ClusterSettings
from das.engine.methods import Method, find_method
from experiments.run.checks import check_values
from experiments.run.errors import UserError
from experiments.run.plain import plain

Group = TypeVar("Group")
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class ArmConfig:
    """The settings of configs/arm."""

    name: str
    method: str  # a row of das/engine/methods.py
    speculative: Settings  # further settings of vLLM's own methods
    budget: Settings | None = None  # the arm's own budget; None: the one of configs/budget
    branch_blocks: int | None = None  # the arm's own engine.branch_blocks; None: the one of configs/engine
    self_draft: Settings | None = None  # format of the policy's weights that draft; None: the default
    online: bool = False  # True if the head is trained during the run

    @property
    def drafts(self) -> bool:
        """True if this arm should make drafts. If so, a run that drafts nothing has failed."""
        return self.row.drafts

    @property
    def row(self) -> Method:
        """The properties of this arm's method, from das/engine/methods.py. Raises EngineError for an unknown method."""
        return find_method(self.method)


@dataclass(frozen=True)
class PolicyConfig:
    """The settings of configs/policy."""

    name: str
    path: str | None  # directory or hub id; None: the small policy that fits the data, or SmolLM2
    cold_start: str | None = None  # smollm2 only: the texts on which it is fine-tuned first; None: as it comes


@dataclass(frozen=True)
class DataConfig:
    """The settings of configs/data."""

    name: str
    judged_by: str  # maths | code | reasoning_gym
    problems: int | None  # how many problems; None: all of the set
    settings: Settings  # the whole group: problem sets have many more settings
    kinds: Settings | None = None  # puzzles only: kind -> relative frequency
    chain_steps: Sequence[int] = ()  # calculator and programs only: lengths of chains
    events: Sequence[int] = ()  # words only: numbers of events
    weights: Sequence[float] = ()  # the relative frequency of each length


@dataclass(frozen=True)
class RewardConfig:
    """The settings of configs/reward."""

    name: str  # maths | code | reasoning_gym | brevity | own
    parallel: int = 1  # number of worker processes; for code, of judges
    timeout_s: float = 0.0  # seconds for one response; code has limits instead
    isolation: str = ""  # code only: full | weak
    limits: Settings | None = None  # code only: the limits of one solution
    function: str = ""  # own only: module:function


@dataclass(frozen=True)
class TrainerConfig:
    """The settings of configs/trainer: those that the harness reads, and all arguments of TRL's GRPOConfig."""

    max_steps: int
    num_generations: int
    max_completion_length: int  # tokens
    temperature: float
    chat_template_kwargs: Settings
    trim_padding: bool  # leave padding out of forward passes (experiments.training.trimmed)
    lag: int  # steps between the weights that sample and the update that uses the responses
    partial: int  # groups that roll out beside those of a step, so that no step waits for the longest
    partial_tokens: int  # tokens that a step grants to each response, at most; 0: no limit
    dynamic_sampling: int  # how often a step draws again, at most, in place of groups whose rewards are equal
    arguments: Settings  # arguments of GRPOConfig, with those above except OURS


@dataclass(frozen=True)
class EngineConfig:
    """The settings of configs/engine."""

    max_model_len: int  # tokens of prompt and response together
    threads: int  # CPU threads of engine and trainer
    kv_cache_gib: int
    exact: str  # bits | distribution
    processes: int  # processes that train together
    launch: str  # the launcher of several processes: python -m LAUNCH run.py ...
    own_process: bool  # True if the engine of a training has its own process
    settings: Settings  # fields of EngineSettings, with some of those above


@dataclass(frozen=True)
class DrafterConfig:
    """The settings of configs/drafter."""

    unit: str  # unit of the window: epoch | step
    options: Settings  # options of das.drafter.make_drafter, with `warm`
    warm: str | None = None  # history.npz of an earlier run


@dataclass(frozen=True)
class HeadConfig:
    """The settings of configs/head."""

    warm: str  # in_domain | general
    responses: int  # number of responses from which a new head learns
    max_tokens: int  # length of such a response
    epochs: int  # passes through these responses
    depth: int  # number of drafted tokens in the loss
    matrix_learning_rate: float
    other_learning_rate: float
    share: float  # share of each step's responses that train the head during the run
    online_rate: float  # factor on both learning rates during the run


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a training's checkpoints."""

    every: int  # training steps; 0: never
    keep: int  # how many of the newest checkpoints are kept


@dataclass(frozen=True)
class EvalConfig:
    """The settings `eval`: accuracy on held-out problems during a training (see evaluation/held_out.py)."""

    every: int  # training steps between evaluations; 0: none
    data: str | None  # name in configs/data; None: held-out problems of the training's own data
    path: str | None  # file from which that set is read
    task: str | None  # for data=reasoning_gym: one of its tasks
    problems: int | None  # how many problems; None: all of a published set
    samples: int  # responses to each problem
    k: Sequence[int] | None  # the k of pass@k; None: powers of two
    temperature: float | None = None  # None: that of the training; 0: greedy


@dataclass(frozen=True)
class RunConfig:
    """All settings of a run that trains or rolls out one arm. A comparison has a RunConfig for each arm."""

    arm: ArmConfig
    policy: PolicyConfig
    data: DataConfig
    reward: RewardConfig
    trainer: TrainerConfig
    engine: EngineConfig
    cluster: ClusterSettings | None  # None: one engine, in the training process
    drafter: DrafterConfig
    head: HeadConfig
    checkpoint: CheckpointConfig
    eval: EvalConfig
    budget: Settings
    task: Settings
    arms: Sequence[str]
    vary: Settings
    schedule: str  # longest_first | given
    seed: int
    resume: str | None  # folder of the run to resume
    wandb: str  # online | offline | off
    wandb_project: str
    cache: str  # folder of what is made on the spot, such as draft heads
    resolved: Settings  # the whole config as plain values, as config.yaml records it

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
        settings = {**self.data.settings, "problems": count}
        return replace(
            self,
            data=replace(self.data, problems=count, settings=settings),
            resolved={**self.resolved, "data": settings},
        )


def responses_per_step(trainer: Mapping[str, Any], processes: int) -> int:
    """Number of responses in a training step over all processes. trainer: arguments of TRL's GRPOConfig."""
    accumulated = trainer.get("gradient_accumulation_steps", 1)
    return int(trainer["per_device_train_batch_size"] * accumulated * processes)


def problems_per_step(trainer: Mapping[str, Any], processes: int) -> int:
    """Number of problems in a training step over all processes. trainer: arguments of TRL's GRPOConfig."""
    return responses_per_step(trainer, processes) // int(trainer["num_generations"])


def steps_per_epoch(num_problems: int, problems_per_step: int) -> int:
    """Number of steps that go once through all problems. Problems that do not fill a step are left out."""
    return max(1, num_problems // problems_per_step)


# Settings of configs/engine that concern the process, not the engine in it.
ENGINE_PROCESS = ("threads", "kv_cache_gib", "processes", "launch", "own_process")
OURS = ("trim_padding", "lag", "partial", "partial_tokens", "dynamic_sampling")  # settings that TRL does not know


def run_config(composed: DictConfig) -> RunConfig:
    """Check the values of Hydra's config and convert it to dataclasses. Raises UserError with a one-line message."""
    check_values(composed)
    resolved = plain(composed)
    data, trainer, engine, drafter = (resolved[name] for name in ("data", "trainer", "engine", "drafter"))
    engine_only = {key: value for key, value in engine.items() if key not in ENGINE_PROCESS}
    options = {key: value for key, value in drafter.items() if key != "unit"}
    grpo = {key: value for key, value in trainer.items() if key not in OURS}
    return _make(
        RunConfig,
        "",
        resolved,
        arm=_make(ArmConfig, "arm", resolved["arm"]),
        policy=_make(PolicyConfig, "policy", resolved["policy"]),
        data=data_config(data),
        reward=reward_config(resolved["reward"]),
        trainer=_make(TrainerConfig, "trainer", trainer, arguments=grpo),
        engine=_make(EngineConfig, "engine", engine, settings=engine_only),
        cluster=cluster_settings(resolved["cluster"]),
        drafter=_make(DrafterConfig, "drafter", drafter, options=options),
        head=_make(HeadConfig, "head", resolved["head"]),
        checkpoint=_make(CheckpointConfig, "checkpoint", resolved["checkpoint"]),
        eval=_make(EvalConfig, "eval", resolved["eval"]),
        resolved=resolved,
    )


def cluster_settings(settings: Settings) -> ClusterSettings | None:
    """Convert the settings of configs/cluster. Returns None for cluster=none. Raises UserError."""
    if settings["name"] == "none":
        return None
    try:
        return ClusterSettings(**{key: value for key, value in settings.items() if key != "name"})
    except ValueError as error:
        raise UserError(str(error)) from None


def data_config(settings: Settings) -> DataConfig:
    """Convert the settings of a file of configs/data to a dataclass."""
    return _make(DataConfig, "data", settings, settings=settings)


def reward_config(settings: Settings) -> RewardConfig:
    """Convert the settings of a file of configs/reward to a dataclass."""
    return _make(RewardConfig, "reward", settings)


def _make(kind: type[Group], group: str, given: Settings, **made: Any) -> Group:
    """Make the dataclass `kind` from a group's settings of the same names. made: fields that are not such settings."""
    values = {**given, **made}
    known: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in values:
            known[field.name] = values[field.name]
        elif field.default is MISSING:
            raise UserError(f"{group}.{field.name} is missing; configs/{group} shows its default".lstrip("."))
    return kind(**known)
