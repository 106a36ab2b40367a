"""Read and check the options for das in an engine's VllmConfig. The engine asks for das by its worker class."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from das.budget import DEFAULT_BUDGET, longest_draft
from das.draft_round import BLOCKS_A_TREE
from das.drafter import check_drafter
from das.engine.contract.versions import RUNNERS
from das.engine.drafters.support import check_options
from das.heads import on_disk as heads

WORKER = "das.engine.worker.DasWorker"


@dataclass(frozen=True)
class DasOptions:
    """The options of an engine that drafts: the `das` part of its additional_config.

    Raises ValueError or TypeError with a one-line message if no engine can have these options.

    drafter: see das.drafter.make_drafter. budget: see das.budget.make_budget. branch_blocks: KV blocks for drafts that
    branch; 0: no draft branches. self_draft: `weights`, `passes` and `history` of drafts by the policy's own quantized
    weights; None: no such drafts. head: `passes` of a draft head beside the history of past responses; None: no head.
    runner: which of vLLM's model runners the engine runs on, "first" or "second"; None: the second on a GPU, if
    this vLLM has it, else the first.
    asynchronous: plan each pass before the tokens of the one before are known. Only the second runner does it. None: on
    a GPU, where it can (das/engine/patches/model_runner.py).
    """

    drafter: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=lambda: DEFAULT_BUDGET)
    branch_blocks: int = 0
    self_draft: Mapping[str, Any] | None = None
    head: Mapping[str, Any] | None = None
    runner: str | None = None
    asynchronous: bool | None = None

    def __post_init__(self) -> None:
        check_drafter(self.drafter)
        longest_draft(self.budget)
        blocks = self.branch_blocks
        if type(blocks) is not int or (blocks != 0 and blocks < BLOCKS_A_TREE):
            raise ValueError(
                f"branch_blocks={blocks!r}: a draft that branches needs {BLOCKS_A_TREE}; set it to a whole number of "
                f"{BLOCKS_A_TREE} or more, or to 0 for chains"
            )
        if self.runner not in (None, *RUNNERS):
            raise ValueError(f"runner={self.runner!r}: choose {' or '.join(RUNNERS)}, or leave it out")
        if self.asynchronous and (self.runner != "second" or blocks):
            raise ValueError("asynchronous=True: only chains on the second runner; set runner=second, branch_blocks=0")
        by_model = "self-drafts are" if self.self_draft is not None else "das_eagle3 drafts" if self.head else ""
        if by_model and blocks:
            raise ValueError(f"branch_blocks={blocks}: {by_model} chains only; set it to 0")
        if by_model and self.drafter.get("name", "history") != "history":
            raise ValueError(f"drafter.name={self.drafter['name']}: {by_model} beside the history only; use method das")
        if self.self_draft is not None:
            if not isinstance(self.self_draft, Mapping) or not isinstance(self.self_draft.get("history"), bool):
                raise ValueError(f"self_draft={self.self_draft!r}: give weights, passes, and history, true or false")
            check_options({key: value for key, value in self.self_draft.items() if key != "history"})
        if self.head is not None:
            head = self.head
            if not isinstance(head, Mapping) or set(head) != {"passes"} or heads.depth_problem(head["passes"]):
                raise ValueError(f"head={head!r}: give passes, a whole number from 1 to {heads.DEEPEST}")

    @property
    def has_history(self) -> bool:
        """True if a drafter drafts from past texts, alone or together with a model."""
        return self.self_draft is None or bool(self.self_draft["history"])

    def as_dict(self) -> dict[str, Any]:
        """Returns the options that are set, as the dict that stands in additional_config."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in values.items()
            if value is not None and (value or name != "branch_blocks")
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
    if speculative_config is None:
        return False
    return str(speculative_config.model).startswith("das.") or das_options(vllm_config).head is not None


def refuse_head(vllm_config: Any) -> None:
    """Raise ValueError with a one-line message if the engine's EAGLE-3 head belongs to another policy."""
    speculative_config = vllm_config.speculative_config
    if speculative_config is None or speculative_config.method != "eagle3" or not speculative_config.model:
        return
    folder, policy = Path(speculative_config.model), Path(vllm_config.model_config.model)
    if folder.is_dir() and (problem := heads.head_problem(folder, policy)):
        raise ValueError(problem)
