"""The groups of settings that configs/ chooses from: a class for each, which says the kind and range of each setting.

configs/ has their values, with meaning and source. The library's own settings, a drafter's, a budget's, a cluster's and
the limits of reward=code, have the annotations and checks of their classes. Tasks' settings are in tasks.py.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, get_type_hints

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from das.budget import POLICIES
from das.cluster.connection import ClusterSettings
from das.drafter.options import DrafterOptions
from das.engine.settings import Method, find_method
from das.models.head_files import DEEPEST
from experiments.paper_budgets import Classes, ClosedForm
from experiments.run.errors import UserError
from experiments.settings.checked import (
    LARGEST,
    Choice,
    Group,
    Named,
    Number,
    Settings,
    Whole,
    arguments_of,
    checked,
)
from rewards.limits import Limits

Count = Annotated[int, Field(ge=1, le=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Size = Annotated[int, Field(ge=1, le=2**16)]
Processes = Annotated[int, Field(ge=1, le=1024)]
Steps = Annotated[int, Field(ge=1, le=10**7)]
Tokens = Annotated[int, Field(ge=1, le=2**22)]  # of prompt and response
Drafted = Annotated[int, Field(ge=1, le=4096)]  # tokens of a request and pass
Seconds = Annotated[float, Field(ge=0.01, le=86400)]
Judge = Literal["maths", "code"]


def _above_or_zero(value: float) -> float:
    if 0 < value < 0.01:  # log-probs are divided by it
        raise PydanticCustomError("temperature", "too low")
    return value


_FROM = {"minimum": 0.01, "or": ", or 0"}  # 0: greedy
Temperature = Annotated[float, Field(ge=0, le=100, json_schema_extra=_FROM), AfterValidator(_above_or_zero)]


# ---- what drafts ----


class OwnBudget(Named):
    model_config = ConfigDict(extra="allow")


def made_budget(settings: Any, key: str = "budget") -> Settings:
    """Return the settings of a budget as das takes them: those of a paper name module:Class. Raises UserError if they
    are impossible."""
    given: dict[str, Any] = BUDGET.made(settings, key).given
    kind = OF_PAPERS.get(given["name"])
    return given if kind is None else {**given, "name": f"{kind.__module__}:{kind.__name__}"}


_OF_BUDGETS: dict[str, Any] = {
    "tokens": Drafted,
    "ratio": Annotated[float, Field(ge=1e-6, le=1e9)] | None,
    "over": Annotated[Settings, BeforeValidator(partial(made_budget, key="budget.over"))] | None,
}
OF_PAPERS = {"classes": Classes, "closed_form": ClosedForm}
_BUDGETS = {name: arguments_of(kind, Named, **_OF_BUDGETS) for name, kind in (*POLICIES.items(), *OF_PAPERS.items())}
BUDGET = Choice("budget", _BUDGETS, OwnBudget)


class _Speculative(Group):
    """Settings of vLLM's own drafting methods."""

    model_config = ConfigDict(extra="allow")

    num_speculative_tokens: Drafted | None = None


def _speculative(settings: Settings) -> Settings:
    checked(_Speculative, settings, "arm.speculative")
    return settings


class ArmConfig(Named):
    """The settings of configs/arm."""

    method: str  # a row of das/engine/settings.py
    speculative: Annotated[Settings, AfterValidator(_speculative)]
    budget: Annotated[Settings, BeforeValidator(partial(made_budget, key="arm.budget"))] | None = None
    self_draft: Literal["w4", "w8a8"] = "w4"  # format of the policy's weights that draft, with method self_draft
    online: bool = False  # True if the head is trained during the run

    @property
    def drafts(self) -> bool:
        """True if this arm should make drafts. If so, a run that drafts nothing has failed."""
        return self.row.drafts

    @property
    def row(self) -> Method:
        """The row of this arm's method (das/engine/settings.py). Raises EngineError for an unknown method."""
        return find_method(self.method)


class DrafterConfig(Named):
    """The settings of configs/drafter. A drafter of the user has further options."""

    model_config = ConfigDict(extra="allow")

    unit: Literal["epoch", "step"]  # unit of the window
    warm: str | None = None

    @property
    def options(self) -> Settings:
        """Options of das.drafter.make_drafter, with `warm`."""
        return {key: value for key, value in self.given.items() if key != "unit"}


class HistoryConfig(arguments_of(DrafterOptions, DrafterConfig, warm=str | None)):  # type: ignore[misc]
    """The settings of the history drafter."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        DrafterOptions(**{key: value for key, value in self.options.items() if key != "name"})
        return self


DRAFTER = Choice("drafter", {"history": HistoryConfig}, DrafterConfig)


class HeadConfig(Group):
    """The settings of EAGLE-3 heads."""

    path: str | None
    tokens: Annotated[int, Field(ge=1, le=DEEPEST)]
    warm: Literal["in_domain", "general"]
    responses: Annotated[int, Field(ge=8, le=10**6)]
    max_tokens: Annotated[int, Field(ge=2, le=2**22)]
    epochs: Annotated[int, Field(ge=1, le=10**4)]
    depth: Annotated[int, Field(ge=1, le=DEEPEST)]
    matrix_learning_rate: Share
    other_learning_rate: Share
    share: Annotated[float, Field(ge=1e-6, le=1)]
    online_rate: Number


# ---- policy, data, reward ----


class PolicyConfig(Named):
    """The settings of configs/policy."""

    path: str | None  # directory or hub id; None: the policy that the name says
    chat_template_kwargs: Settings
    cold_start: Literal["words"] | None = None  # smollm2 only: the texts on which it is fine-tuned; None: as it comes
    shape: str | None = None  # random only: the sizes of its weights

    @model_validator(mode="after")
    def _known(self) -> Self:
        if self.path is None and self.name not in ("small", "smollm2", "random"):
            raise UserError(f"policy.name={self.name}: choose with policy=NAME, or name a folder by policy.path")
        return self


class DataConfig(Named):
    """What the files of configs/data have in common."""

    judged_by: Judge
    problems: Count | None  # how many problems; None: all of the set


class MadeData(DataConfig):
    """Problems that are made here: there is no end of them."""

    problems: Count

    @property
    def mix(self) -> Mapping[Any, float]:
        """Kind of a problem, or number of its steps or events -> relative frequency."""
        raise NotImplementedError

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not any(self.mix.values()):
            raise UserError("data.kinds or data.weights: at least one frequency must be above 0")
        return self


class Kinds(Group):
    """Relative frequencies of the kinds of puzzles."""

    pair: Number = 0
    triple: Number = 0
    walk: Number = 0


class Puzzles(MadeData):
    kinds: Kinds

    @property
    def mix(self) -> Mapping[Any, float]:
        """See MadeData."""
        return self.kinds.model_dump()


class Programs(MadeData):
    chain_steps: list[Annotated[int, Field(ge=2, le=8)]]
    weights: list[Number]  # the relative frequency of each length

    @property
    def mix(self) -> Mapping[Any, float]:
        """See MadeData."""
        return _weighted("chain_steps", self.chain_steps, self.weights)


class Words(MadeData):
    events: list[Annotated[int, Field(ge=1, le=10)]]
    weights: list[Number]  # the relative frequency of each number of events

    @property
    def mix(self) -> Mapping[Any, float]:
        """See MadeData."""
        return _weighted("events", self.events, self.weights)


def _weighted(name: str, lengths: list[int], weights: list[float]) -> Mapping[int, float]:
    if len(lengths) != len(weights):
        raise UserError(f"data.{name} and data.weights must be equally long: a weight for each length of problem")
    return dict(zip(lengths, weights, strict=True))


class Hub(Group):
    id: str
    subsets: list[str]
    split: str
    revision: str


class Columns(Group):
    """A column's name, or several: the first one that a row has."""

    problem: str | list[str]
    answer: str | list[str]
    tests: str | list[str]
    starter: str | list[str]
    id: str | list[str] | None


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
    held_out: Annotated[float, Field(ge=0, le=0.999)]
    max_prompt_tokens: Count | None


DATA = Choice(  # other sets are published, or the user's own
    "data",
    {"puzzles": Puzzles, "programs": Programs, "words": Words},
    ProblemSet,
    is_other=lambda settings: "columns" in settings,
)


class RewardConfig(Named):
    """The settings of configs/reward. Alone, those of reward=brevity."""


class MathsConfig(RewardConfig):
    parallel: Processes
    timeout_s: Seconds  # for one response


_LIMIT: dict[Any, Any] = {int: Annotated[int, Field(ge=1, le=2**20)], float: Annotated[float, Field(ge=0.01, le=2**20)]}
_LIMITS = arguments_of(Limits, **{name: _LIMIT[kind] for name, kind in get_type_hints(Limits).items()})


class CodeConfig(RewardConfig):
    parallel: Processes  # judges
    limits: Annotated[
        Limits, BeforeValidator(lambda settings: Limits(**checked(_LIMITS, settings, "reward.limits").given))
    ]


class OwnConfig(RewardConfig):
    function: str  # module:function


REWARD = Choice("reward", {"brevity": RewardConfig, "code": CodeConfig, "maths": MathsConfig, "own": OwnConfig})


# ---- engine, and what goes beside a training ----


class EngineConfig(Group):
    """The settings of configs/engine."""

    dtype: Literal["float32", "bfloat16", "float16", "auto"]
    threads: Processes | None  # CPU threads of engine and trainer; None: as many as torch takes
    kv_cache_gib: Annotated[int, Field(ge=1, le=2**14)]
    max_model_len: Annotated[int, Field(ge=2, le=2**22)]  # tokens of prompt and response together
    max_num_seqs: Size
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=2**24)]
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    enforce_eager: bool
    gpu_memory_utilization: Annotated[float, Field(ge=0.001, le=1)]
    tensor_parallel_size: Processes
    exact: Literal["bits", "distribution"]
    weight_check_every: Steps  # syncs
    processes: Size  # that train together
    launch: str  # the launcher of several processes: python -m LAUNCH run.py ...
    own_process: bool  # True if the engine of a training has its own process
    extra: Settings = Field(default_factory=dict)  # further arguments of vllm.LLM

    OF_PROCESS: ClassVar = ("threads", "processes", "launch", "own_process")

    @property
    def settings(self) -> Settings:
        """Fields of EngineSettings: without the settings of the process in which the engine is."""
        return {key: value for key, value in self.given.items() if key not in self.OF_PROCESS}


CLUSTER = Choice("cluster", {"none": Named, "ray": arguments_of(ClusterSettings, Named)})


def made_cluster(settings: Any) -> ClusterSettings | None:
    """Return the settings of a cluster; None without one. Raises UserError if they are impossible."""
    made = CLUSTER.made(settings)
    return None if made.name == "none" else ClusterSettings(**made.model_dump(exclude={"name"}))


class CheckpointConfig(Group):
    """The settings of a training's checkpoints."""

    every: Whole  # training steps; 0: never
    keep: Annotated[int, Field(ge=2, le=LARGEST)]  # the newest ones; 2 or more, because the last one may be incomplete


class EvalConfig(Group):
    """The settings `eval`: accuracy on held-out problems during a training (experiments/arm/evaluation.py)."""

    every: Annotated[int, Field(ge=0, le=10**7)]  # training steps between evaluations; 0: none
    data: str | None  # name in configs/data; None: held-out problems of the training's own data
    path: str | None  # file from which that set is read
    problems: Annotated[int, Field(ge=1, le=10**6)] | None  # how many problems; None: all of a published set
    samples: Size  # responses to each problem
    k: list[Size] | None  # the k of pass@k; None: powers of two
    temperature: Temperature | None = None  # None: that of the training; 0: greedy
