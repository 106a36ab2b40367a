"""The settings of a run as frozen, typed dataclasses. `run_config` makes them once from Hydra's config.

configs/ holds every setting's value with its unit or source. Its kind and its range stand here, once, but for those of
the library's own settings: a drafter's, a budget's, a cluster's and the limits of reward=code have the annotations of
their classes. Tasks' settings are in tasks.py.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from das.budget import POLICIES
from das.cluster.connection import ClusterSettings
from das.drafter.options import DrafterOptions
from das.engine.settings import Method, find_method
from experiments.run.errors import UserError
from experiments.run.plain import plain
from experiments.settings import trl
from experiments.settings.conflicts import refuse_conflicts
from experiments.settings.tasks import TASK
from experiments.settings.typed import Given, Named, Range, Settings, group, made
from rewards.limits import Limits

Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Tokens = Annotated[int, Range(1, 2**22)]  # of a response
Drafted = Annotated[int, Range(1, 4096)]  # tokens of a request and pass
Temperature = Annotated[float, Range(0.01, 100, or_zero=True)]  # log-probs are divided by it; 0: greedy
Judge = Literal["maths", "code"]

BUDGET = Named(
    "budget",
    POLICIES,
    own=lambda name: None,
    hints={"tokens": Drafted, "ratio": Annotated[float, Range(1e-6, 1e9)] | None},
    made=False,
)
Budget = Annotated[Settings, BUDGET]
BUDGET.hints["over"] = Budget | None  # type: ignore[index]  # a budget over a budget


@dataclass(frozen=True)
class ArmConfig:
    """The settings of configs/arm."""

    name: str
    method: str  # a row of das/engine/settings.py
    speculative: Settings  # further settings of vLLM's own methods
    budget: Budget | None = None  # the arm's own budget; None: the one of configs/budget
    self_draft: Literal["w8a8", "w4"] = "w8a8"  # format of the policy's weights that draft, with method self_draft
    online: bool = False  # True if the head is trained during the run

    def __post_init__(self) -> None:
        made(Drafted | None, self.speculative.get("num_speculative_tokens"), "arm.speculative.num_speculative_tokens")

    @property
    def drafts(self) -> bool:
        """True if this arm should make drafts. If so, a run that drafts nothing has failed."""
        return self.row.drafts

    @property
    def row(self) -> Method:
        """The row of this arm's method (das/engine/settings.py). Raises EngineError for an unknown method."""
        return find_method(self.method)


@dataclass(frozen=True)
class PolicyConfig:
    """The settings of configs/policy."""

    name: str
    path: str | None  # directory or hub id; None: the policy that the name says
    chat_template_kwargs: Settings
    cold_start: Literal["words"] | None = None  # smollm2 only: the texts on which it is fine-tuned; None: as it comes
    shape: str | None = None  # random only: the sizes of its weights

    def __post_init__(self) -> None:
        if self.path is None and self.name not in ("small", "smollm2", "random"):
            raise UserError(f"policy.name={self.name}: choose with policy=NAME, or name a folder by policy.path")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What the files of configs/data have in common."""

    name: str
    judged_by: Judge
    problems: Count | None  # how many problems; None: all of the set
    settings: Given  # the whole group


@dataclass(frozen=True, kw_only=True)
class Puzzles(DataConfig):
    kinds: dict[str, float]  # kind -> relative frequency


@dataclass(frozen=True, kw_only=True)
class Programs(DataConfig):
    chain_steps: list[Annotated[int, Range(2, 8)]]
    weights: list[float]  # the relative frequency of each length


@dataclass(frozen=True, kw_only=True)
class Words(DataConfig):
    events: list[Annotated[int, Range(1, 10)]]
    weights: list[float]  # the relative frequency of each number of events


@dataclass(frozen=True)
class Hub:
    id: str
    subsets: list[str]
    split: str
    revision: str


@dataclass(frozen=True)
class Columns:
    """A column's name, or several: the first one that a row has."""

    problem: str | list[str]
    answer: str | list[str]
    tests: str | list[str]
    starter: str | list[str]
    id: str | list[str] | None


@dataclass(frozen=True, kw_only=True)
class ProblemSet(DataConfig):
    hub: Hub | None
    path: str | None
    columns: Columns
    answer_after: str | None
    max_tests: Count | None
    system: str | None
    prompt: str
    with_starter: str | None
    as_program: str | None
    part: Literal["train", "eval"]
    held_out: Annotated[float, Range(0, 0.999)]
    max_prompt_tokens: Count | None


DATA = Named(
    "data",
    {"puzzles": Puzzles, "programs": Programs, "words": Words},
    others=(ProblemSet, "columns"),  # published, or the user's own
)


@dataclass(frozen=True)
class RewardConfig:
    """The settings of configs/reward. Alone, those of reward=brevity."""

    name: str


@dataclass(frozen=True)
class MathsConfig(RewardConfig):
    parallel: Annotated[int, Range(1, 1024)]  # worker processes
    timeout_s: Annotated[float, Range(0.01, 86400)]  # seconds for one response


@dataclass(frozen=True)
class CodeConfig(RewardConfig):
    parallel: Annotated[int, Range(1, 1024)]  # judges
    limits: Limits  # of one solution

    def __post_init__(self) -> None:
        for name, value in vars(self.limits).items():
            made(Annotated[float, Range(0.01, 2**20)], value, f"reward.limits.{name}")


@dataclass(frozen=True)
class OwnConfig(RewardConfig):
    function: str  # module:function


REWARD = Named("reward", {"brevity": RewardConfig, "code": CodeConfig, "maths": MathsConfig, "own": OwnConfig})


@dataclass(frozen=True, kw_only=True)
class StepConfig:
    """The settings of configs/trainer that TRL does not know; experiments.training.trainer explains them."""

    trim_padding: bool
    lag: Annotated[int, Range(0, 8)]  # training steps


@dataclass(frozen=True, kw_only=True)
class TrainerConfig(StepConfig):
    """The settings of configs/trainer: those that the harness reads, and arguments of TRL's GRPOConfig."""

    max_steps: Annotated[int, Range(1, 10**7)]
    per_device_train_batch_size: trl.Size  # responses; DAS: 2,048 over all processes
    learning_rate: Share  # 0: the policy stays as it is
    lr_scheduler_type: str
    max_grad_norm: float
    beta: float
    vllm_importance_sampling_correction: bool
    num_generations: Count
    max_completion_length: Tokens
    temperature: Temperature
    chat_template_kwargs: Settings
    given: Given

    FURTHER: ClassVar = trl.TAKEN
    ADVICE: ClassVar = staticmethod(trl.instead)

    @property
    def arguments(self) -> Settings:
        """The arguments of GRPOConfig."""
        return {key: value for key, value in self.given.items() if key not in self.of_steps}

    @property
    def of_steps(self) -> Settings:
        """The settings that TRL does not know: arguments of the harness's trainer."""
        return {each.name: getattr(self, each.name) for each in fields(StepConfig)}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The settings of configs/engine."""

    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    threads: Annotated[int, Range(1, 1024)] | None  # CPU threads of engine and trainer; None: as many as torch takes
    kv_cache_gib: Annotated[int, Range(1, 2**14)]
    max_model_len: Annotated[int, Range(2, 2**22)]  # tokens of prompt and response together
    max_num_seqs: Annotated[int, Range(1, 2**16)]
    max_num_batched_tokens: Annotated[int, Range(1, 2**24)]
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    enforce_eager: bool
    gpu_memory_utilization: Annotated[float, Range(0.001, 1)]
    tensor_parallel_size: Annotated[int, Range(1, 1024)]
    exact: Literal["bits", "distribution"]
    weight_check_every: Annotated[int, Range(1, 10**7)]  # syncs
    processes: Annotated[int, Range(1, 2**16)]  # processes that train together
    launch: str  # the launcher of several processes: python -m LAUNCH run.py ...
    own_process: bool  # True if the engine of a training has its own process
    extra: Settings = field(default_factory=dict)  # further arguments of vllm.LLM
    given: Given

    OF_PROCESS: ClassVar = ("threads", "processes", "launch", "own_process")

    @property
    def settings(self) -> Settings:
        """Fields of EngineSettings: without the settings of the process in which the engine is."""
        return {key: value for key, value in self.given.items() if key not in self.OF_PROCESS}


@dataclass(frozen=True, kw_only=True)
class DrafterConfig(DrafterOptions):
    """The settings of configs/drafter. A drafter of the user has further options, in `options`."""

    name: str
    unit: Literal["epoch", "step"]  # unit of the window
    warm: str | None = None
    given: Given

    @property
    def options(self) -> Settings:
        """Options of das.drafter.make_drafter, with `warm`."""
        return {key: value for key, value in self.given.items() if key != "unit"}


@dataclass(frozen=True)
class OwnDrafter:
    name: str
    unit: Literal["epoch", "step"]
    given: Given
    warm: str | None = None
    options = DrafterConfig.options


DRAFTER = Named("drafter", {"history": DrafterConfig}, own=OwnDrafter)


def _no_cluster() -> None:
    return None


CLUSTER = Named("cluster", {"none": _no_cluster, "ray": ClusterSettings})


@dataclass(frozen=True)
class HeadConfig:
    """The settings of EAGLE-3 heads."""

    path: str | None
    tokens: Drafted  # of a request and pass
    warm: Literal["in_domain", "general"]
    responses: Annotated[int, Range(8, 10**6)]  # number of responses from which a new head learns
    max_tokens: Annotated[int, Range(2, 2**22)]  # length of such a response
    epochs: Annotated[int, Range(1, 10**4)]  # passes through these responses
    depth: Drafted  # number of drafted tokens in the loss
    matrix_learning_rate: Share
    other_learning_rate: Share
    share: Annotated[float, Range(1e-6, 1)]  # of each step's responses that train the head during the run
    online_rate: float  # factor on both learning rates during the run


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a training's checkpoints."""

    every: int  # training steps; 0: never
    keep: Annotated[int, Range(2)]  # the newest ones; 2 or more, because the last one may be incomplete


@dataclass(frozen=True)
class EvalConfig:
    """The settings `eval`: accuracy on held-out problems during a training (see evaluation/held_out.py)."""

    every: Annotated[int, Range(0, 10**7)]  # training steps between evaluations; 0: none
    data: str | None  # name in configs/data; None: held-out problems of the training's own data
    path: str | None  # file from which that set is read
    problems: Annotated[int, Range(1, 10**6)] | None  # how many problems; None: all of a published set
    samples: Annotated[int, Range(1, 2**16)]  # responses to each problem
    k: list[Annotated[int, Range(1, 2**16)]] | None  # the k of pass@k; None: powers of two
    temperature: Temperature | None = None  # None: that of the training; 0: greedy


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """All settings of a run. A comparison has a RunConfig for each arm."""

    arm: ArmConfig
    policy: PolicyConfig
    data: Annotated[DataConfig, DATA]
    reward: Annotated[RewardConfig, REWARD]
    trainer: TrainerConfig
    engine: EngineConfig
    cluster: Annotated[ClusterSettings | None, CLUSTER]  # None: one engine, in the training process
    drafter: Annotated[DrafterConfig, DRAFTER]
    head: HeadConfig
    checkpoint: CheckpointConfig
    eval: EvalConfig
    budget: Budget
    task: Annotated[Any, TASK]
    arms: list[str]
    vary: Settings
    schedule: Literal["longest_first", "given"]
    seed: Annotated[int, Range(0, 2**32 - 1)]  # NumPy's range
    resume: str | None  # folder of the run to resume
    wandb: Literal["online", "offline", "off"]
    wandb_project: str
    out: str
    cache: str  # folder of what is made on the spot, such as draft heads
    profile: Literal["small", "smoke", "paper"]
    paper: Literal["das", "efficient_rollout", "nemo_rl"] | None
    experiment: Settings = field(default_factory=dict)
    resolved: Given  # the whole config as plain values, as config.yaml records it

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
        data = data_config({**self.data.settings, "problems": count})
        return replace(self, data=data, resolved={**self.resolved, "data": data.settings})


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
    """Check Hydra's config and convert it to dataclasses. Raises UserError with a one-line message."""
    try:
        resolved = plain(composed)
    except OmegaConfBaseException as error:  # an interpolation is wrong
        raise UserError(str(error)) from error
    config: RunConfig = group(RunConfig, {key: value for key, value in resolved.items() if key != "hydra"}, "")
    refuse_conflicts(config.resolved)
    return config


def data_config(settings: Settings) -> DataConfig:
    """Convert the settings of a file of configs/data to a dataclass."""
    data: DataConfig = made(Annotated[DataConfig, DATA], settings, "data")
    return data


def reward_config(settings: Settings) -> RewardConfig:
    """Convert the settings of a file of configs/reward to a dataclass."""
    reward: RewardConfig = made(Annotated[RewardConfig, REWARD], settings, "reward")
    return reward
