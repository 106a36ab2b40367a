"""The settings of an engine, declared here, checked when they are made and parsed once in each process; and the table
of drafting methods, from which every list of methods is made.

A new method needs one row here and one file that drafts. An engine asks for das by its worker class, and its options
travel in its additional_config.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from das.budget import DEFAULT_BUDGET, checked_budget
from das.drafter import check_drafter
from das.engine.model_code import refuse_model_code
from das.general.errors import EngineError
from das.models import head_files
from das.models.quantized import FORMATS

WORKER = "das.engine.worker.DasWorker"
BITS = "bits"
DISTRIBUTION = "distribution"
SHORT = 8  # drafted tokens of a request and pass, at most, where drafts keep the distribution alone; not measured yet
EXACT = {  # what drafts leave equal (docs/exactness.md), and the line that says so at a start
    BITS: "exact=bits: drafts change no token",
    DISTRIBUTION: "exact=distribution: drafts keep the policy's distribution, not each token (exact=bits does)",
}
PROPOSER = "das.engine.proposer.DasProposer"  # the class that vLLM loads where das drafts
HISTORY, LEARNED = "history.npz", "learned.npz"  # files of a checkpoint: the drafter's history, and what else it needs
STOCK = "stock"  # vLLM as it comes, without das
SpeculativeConfig = dict[str, Any] | None  # vLLM's speculative_config
_parsed: dict[str, "DasOptions"] = {}  # of this process's engines, by their JSON


def longest_on_device(exact: str | None) -> int | None:
    """Returns the longest draft, in tokens, that das plans on this device; None: as long as the budget gives.

    vLLM reserves rows and KV blocks of the longest draft for every request, and drafts beyond 8 tokens pay where few
    requests run. exact: as the engine asks.
    """
    import vllm.envs
    from vllm.platforms import current_platform

    keeps = exact == BITS or (exact is None and vllm.envs.VLLM_BATCH_INVARIANT)
    return None if current_platform.is_cpu() or keeps else SHORT


def check_exact(exact: str | None) -> None:
    """Raise ValueError with a one-line message for an unknown exactness. None: the device's default."""
    if exact not in (None, *EXACT):
        raise ValueError(f"exact={exact!r}: choose {' or '.join(EXACT)}")


@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The settings of an engine that its worker needs to draft. EngineSettings and DasOptions have them from here."""

    # name of the drafter, and the options that differ from its defaults (das.drafter.make_drafter)
    drafter: Mapping[str, Any] = field(default_factory=dict)
    # name and options of the budget policy (das.budget.make_budget)
    budget: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_BUDGET)
    exact: str | None = None  # what drafts leave equal (EXACT); None: bits on a CPU, distribution on a GPU
    # Whether vLLM plans a pass before it knows the tokens of the one before (docs/vllm.md). None: on a GPU, if das
    # drafts from texts, and a pass has room for the longest draft of every request.
    asynchronous: bool | None = None


@dataclass(frozen=True, kw_only=True)
class DasOptions(DraftOptions):
    """The options of an engine that drafts: the `das` part of its additional_config.

    Raises ValueError or TypeError with a one-line message if no engine can have these options.

    self_draft: the format of the policy's own quantized weights that draft, one of FORMATS; None: no such drafts.
    """

    self_draft: str | None = None

    def __post_init__(self) -> None:
        check_exact(self.exact)
        check_drafter(self.drafter)
        budget = checked_budget(self.budget)
        if self.asynchronous not in (None, False, True):
            raise ValueError(f"asynchronous={self.asynchronous!r}: give true or false")
        if self.self_draft is not None:
            if (name := self.drafter.get("name", "history")) != "history":
                raise ValueError(f"drafter.name={name}: with self-drafts no other drafter drafts; use method das")
            if self.self_draft not in FORMATS:
                raise ValueError(f"self_draft={self.self_draft!r}: choose {' or '.join(FORMATS)}")
            if budget.reads_probabilities:
                raise ValueError(
                    "budget=marginal cannot cut self-drafts, whose tokens come without probabilities: choose fixed, "
                    "ladder or roofline_toggle"
                )

    def as_dict(self) -> dict[str, Any]:
        """Returns the options that are set, as the dict that stands in additional_config."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in values.items()
            if value is not None
        }


def das_options(vllm_config: Any) -> DasOptions:
    """Returns the options of an engine, which each process parses once. Raises ValueError or TypeError with a one-line
    message if they are impossible."""
    additional_config = vllm_config.additional_config
    given = additional_config.get("das", {}) if isinstance(additional_config, dict) else {}
    names = sorted(each.name for each in fields(DasOptions))
    if not isinstance(given, dict) or set(given) - set(names):
        raise ValueError(f'additional_config["das"] must be a dictionary of {", ".join(names)}, got {given!r}')
    text = json.dumps(given, sort_keys=True, default=repr)
    if text not in _parsed:
        _parsed[text] = DasOptions(**given)
    return _parsed[text]


def drafts_by_das(vllm_config: Any) -> bool:
    """Returns whether das drafts in the engine. False if one of vLLM's own drafters does, or if nothing drafts."""
    speculative_config = vllm_config.speculative_config
    return speculative_config is not None and str(speculative_config.model).startswith("das.")


def refuse_head(vllm_config: Any) -> None:
    """Raise ValueError with a one-line message if the engine's EAGLE-3 head belongs to another policy."""
    speculative_config = vllm_config.speculative_config
    if speculative_config is None or speculative_config.method != "eagle3" or not speculative_config.model:
        return
    folder, policy = Path(speculative_config.model), Path(vllm_config.model_config.model)
    if folder.is_dir() and (problem := head_files.head_problem(folder, policy)):
        raise ValueError(problem)


@dataclass(frozen=True)
class Method:
    """A row of the table.

    speculative: makes vLLM's speculative_config from an engine's settings; raises EngineError with a one-line
    message if they are impossible. history: True if it drafts from earlier rollouts. proposes: True if DasProposer
    drafts, within a budget of das; otherwise one of vLLM's own drafters does. model: the model that drafts; None if
    drafts come from texts only. simulated: True if experiments/simulate can simulate it. keyed: True if das verifies,
    by keyed noise; otherwise vLLM's own sampler does.
    """

    name: str
    speculative: Callable[["EngineSettings"], SpeculativeConfig]
    history: bool = False
    proposes: bool = False
    model: Literal["policy", "head", "mtp layer", "draft model"] | None = None
    simulated: bool = False
    keyed: bool = True

    @property
    def drafts(self) -> bool:
        """True if the method drafts at all."""
        return self.name not in ("none", STOCK)

    @property
    def self_drafts(self) -> bool:
        """True if the policy's own quantized weights draft."""
        return self.model == "policy"

    @property
    def sleeps(self) -> bool:
        """True if the method's engine may sleep. Sleep drops all weights, and nobody reloads those of a draft model."""
        return self.model in (None, "policy")

    @property
    def forced(self) -> bool:
        """True if the method drafts well for recorded responses (task.recorded). A draft model does not: it would
        predict other tokens than the recorded ones."""
        return self.model is None


@dataclass(frozen=True)
class EngineSettings(DraftOptions):
    """The settings of an engine. Sizes are in tokens unless the comment gives another unit."""

    model: str  # directory or hub id
    method: str = "none"  # a row of METHODS
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 32  # requests that decode at once
    max_num_batched_tokens: int = 4096
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    enforce_eager: bool = True
    gpu_memory_utilization: float = 0.1  # fraction of device memory (of host memory on the CPU)
    tensor_parallel_size: int = 1
    weight_check_every: int = 4  # syncs within which every weight is compared with the trainer's; 1: all each time
    kv_cache_gib: int = 1  # KV cache on a CPU; on a GPU vLLM takes what gpu_memory_utilization leaves
    seed: int = 0
    self_draft: str = "w4"  # or w8a8: the format of the policy's own weights that draft, with method self_draft
    # Of vLLM's speculative_config, such as {"model": "DIRECTORY", "num_speculative_tokens": 4}. das takes this number
    # alone: its longest draft, by default the budget's, and 8 on a GPU with exact=distribution.
    speculative: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # further arguments of vllm.LLM, without code

    def __post_init__(self) -> None:
        refuse_model_code({**self.extra, "speculative": self.speculative})
        self.das_options  # noqa: B018  # impossible ones are refused

    @cached_property
    def das_options(self) -> DasOptions:
        """The settings that concern drafts, in the form in which das's worker takes them."""
        own = self.self_draft if self.row.self_drafts else None
        return DasOptions(**{each.name: getattr(self, each.name) for each in fields(DraftOptions)}, self_draft=own)

    @property
    def row(self) -> Method:
        """The method's row in the table. Raises EngineError for an unknown method."""
        return find_method(self.method)


def _own(settings: EngineSettings) -> SpeculativeConfig:
    most, planned = checked_budget(settings.budget).max_draft_tokens, settings.speculative.get("num_speculative_tokens")
    if unknown := set(settings.speculative) - {"num_speculative_tokens"}:
        raise EngineError(f"speculative.{min(unknown)}: {settings.method} takes num_speculative_tokens alone")
    if planned is None:
        planned = longest_on_device(settings.exact) or most
    elif type(planned) is not int or planned < 1:
        raise EngineError(f"num_speculative_tokens={planned!r}: the longest draft is a whole number, 1 or more")
    return {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": min(most, planned)}


def _suffix(settings: EngineSettings) -> SpeculativeConfig:
    if find_spec("arctic_inference") is None:
        raise EngineError("arm suffix needs arctic-inference, which is not installed: run `make peers`")
    return {"method": "suffix", **settings.speculative}


def _eagle3(settings: EngineSettings) -> dict[str, Any]:
    if not settings.speculative.get("model"):
        raise EngineError("eagle3 needs a head: set model in its speculative settings to the head's folder")
    if problem := head_files.depth_problem(settings.speculative.get("num_speculative_tokens")):
        raise EngineError(problem)
    return {"method": "eagle3", **settings.speculative}


def _mtp(settings: EngineSettings) -> SpeculativeConfig:
    if problem := head_files.mtp_problem(settings.model, settings.speculative.get("num_speculative_tokens")):
        raise EngineError(problem)
    return {"method": "mtp", **settings.speculative}


def _stock(settings: EngineSettings) -> SpeculativeConfig:
    raise EngineError(
        "stock is vLLM as it comes, without das: leave das.install() and das.engine_arguments() out, or call "
        'das.speculate("off"); in experiments it is arm=stock'
    )


_ROWS = (
    Method("none", lambda settings: None, simulated=True),
    Method("das", _own, history=True, proposes=True, simulated=True),
    Method("self_draft", _own, proposes=True, model="policy"),
    Method("ngram", lambda settings: {"method": "ngram", **settings.speculative}),
    Method("suffix", _suffix, history=True),
    Method("draft_model", lambda settings: {"method": "draft_model", **settings.speculative}, model="draft model"),
    Method("eagle3", _eagle3, model="head"),
    Method("mtp", _mtp, model="mtp layer"),
    Method(STOCK, _stock, keyed=False),
)
METHODS = {row.name: row for row in _ROWS}


def find_method(name: str) -> Method:
    """Returns the row of the method with this name. Raises EngineError with a one-line message if the name is
    unknown."""
    if name not in METHODS:
        keyed = ", ".join(row.name for row in METHODS.values() if row.keyed)
        raise EngineError(f"unknown speculation method {name!r}: choose {keyed}")
    return METHODS[name]


def method_in(speculative_config: Mapping[str, Any] | None, das: Mapping[str, Any]) -> str:
    """Find the drafting method of a running engine in its configuration. Returns the name of a row of the table, or of
    another method of vLLM.

    speculative_config: vLLM's. das: the `das` part of its additional_config.
    """
    if speculative_config is None:
        return "none"
    if speculative_config["model"] != PROPOSER:
        return str(speculative_config["method"])
    return "self_draft" if "self_draft" in das else "das"
