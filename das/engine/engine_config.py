"""What the VllmConfig of an engine asks of das, read and checked. An engine asks for das by its worker class."""

from pathlib import Path
from typing import Any

from das.draft_round import checked_branch_blocks
from das.engine.drafters.support import check_options
from das.heads import on_disk as heads

WORKER = "das.engine.worker.DasWorker"
SETTINGS = {"drafter", "budget", "branch_blocks", "self_draft", "head"}  # keys of additional_config["das"]


def drafts_by_das(vllm_config: Any) -> bool:
    """Whether the engine's drafts come from das, and not from vLLM's own drafters or from nowhere."""
    speculative_config = vllm_config.speculative_config
    if speculative_config is None:
        return False
    return str(speculative_config.model).startswith("das.") or "head" in das_settings(vllm_config)


def das_settings(vllm_config: Any) -> dict[str, Any]:
    """The `das` part of the engine's additional_config: its `drafter`, `budget`, `branch_blocks`, `self_draft` and
    `head`; {} where it is absent.

    Raises ValueError, in one line, for settings of another form.
    """
    additional_config = vllm_config.additional_config
    settings = additional_config.get("das", {}) if isinstance(additional_config, dict) else {}
    if not isinstance(settings, dict) or set(settings) - SETTINGS:
        raise ValueError(
            f'additional_config["das"] must be a dictionary of {", ".join(sorted(SETTINGS))}, got {settings!r}'
        )
    blocks = checked_branch_blocks(settings.get("branch_blocks", 0))
    if (self_draft := settings.get("self_draft")) is not None:
        if not isinstance(self_draft, dict) or not isinstance(self_draft.get("history"), bool):
            raise ValueError(f"self_draft={self_draft!r}: give weights, passes, and history, true or false")
        check_options({key: value for key, value in self_draft.items() if key != "history"})
        if blocks:
            raise ValueError(f"branch_blocks={blocks}: self-drafts are chains only; set it to 0")
    if (head := settings.get("head")) is not None:
        if not isinstance(head, dict) or set(head) != {"passes"} or heads.depth_problem(head["passes"]):
            raise ValueError(f"head={head!r}: give passes, a whole number from 1 to {heads.DEEPEST}")
        if blocks:
            raise ValueError(f"branch_blocks={blocks}: das_eagle3 drafts chains only; set it to 0")
    return settings


def refuse_head(vllm_config: Any) -> None:
    """Raise ValueError, in one line, for an EAGLE-3 head that belongs to another policy."""
    speculative_config = vllm_config.speculative_config
    if speculative_config is None or speculative_config.method != "eagle3" or not speculative_config.model:
        return
    folder, policy = Path(speculative_config.model), Path(vllm_config.model_config.model)
    if folder.is_dir() and (problem := heads.head_problem(folder, policy)):
        raise ValueError(problem)
