"""The settings of an engine, and the table of drafting methods. Every list of methods is made from this table.

A new method needs one row here and one file that drafts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import Any, Literal

from das.budget import longest_draft
from das.engine.engine_config import DasOptions, DraftOptions, longest_on_device
from das.engine.model_code import refuse_model_code
from das.errors import EngineError
from das.models import head_files

PROPOSER = "das.engine.proposer.DasProposer"  # the class that vLLM loads where das drafts
STOCK = "stock"  # vLLM as it comes, without das
SpeculativeConfig = dict[str, Any] | None  # vLLM's speculative_config


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
    method: str = "none"  # a row of METHODS (methods.py)
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
    self_draft: str = "w8a8"  # or w4: the format of the policy's own weights that draft, with method self_draft
    # Of vLLM's speculative_config, such as {"model": "DIRECTORY", "num_speculative_tokens": 4}. das takes this number
    # alone: its longest draft, by default the budget's, and 8 on a GPU with exact=distribution.
    speculative: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)  # further arguments of vllm.LLM, without code

    def __post_init__(self) -> None:
        refuse_model_code({**self.extra, "speculative": self.speculative})
        self.das_options  # noqa: B018  # impossible ones are refused

    @property
    def das_options(self) -> DasOptions:
        """The settings that concern drafts, in the form in which das's worker takes them."""
        own = self.self_draft if self.row.self_drafts else None
        return DasOptions(**{each.name: getattr(self, each.name) for each in fields(DraftOptions)}, self_draft=own)

    @property
    def row(self) -> Method:
        """The method's row in the table of das/engine/methods.py. Raises EngineError for an unknown method."""
        return find_method(self.method)


def _own(settings: EngineSettings) -> SpeculativeConfig:
    most, planned = longest_draft(settings.budget), dict(settings.speculative).pop("num_speculative_tokens", None)
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


def _draft_model(settings: EngineSettings) -> SpeculativeConfig:
    """Returns vLLM's speculative_config for a draft model. build.check_draft_model checks its folder."""
    model, tokens = (settings.speculative.get(name) for name in ("model", "num_speculative_tokens"))
    if not isinstance(model, str) or not model:
        raise EngineError(
            'draft_model needs speculative={"model": folder or hub id, "num_speculative_tokens": 4}, '
            f"got model={model!r}"
        )
    if not isinstance(tokens, int) or tokens < 1:
        raise EngineError(f"num_speculative_tokens={tokens!r}: a draft model needs a whole number, 1 or more")
    return {"method": "draft_model", **settings.speculative}


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
    Method("draft_model", _draft_model, model="draft model"),
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
