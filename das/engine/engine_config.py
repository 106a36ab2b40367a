"""Read and check the options for das in an engine's VllmConfig. The engine asks for das by its worker class."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from das.budget import DEFAULT_BUDGET, checked_budget
from das.drafter import check_drafter
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
    """Returns the options of an engine. Raises ValueError or TypeError with a one-line message if they are
    impossible."""
    additional_config = vllm_config.additional_config
    given = additional_config.get("das", {}) if isinstance(additional_config, dict) else {}
    names = sorted(each.name for each in fields(DasOptions))
    if not isinstance(given, dict) or set(given) - set(names):
        raise ValueError(f'additional_config["das"] must be a dictionary of {", ".join(names)}, got {given!r}')
    return DasOptions(**given)


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
