"""Make the drafter of an engine in which a model drafts, alone or beside the history of past responses."""

from collections.abc import Mapping
from typing import Any

from das.budget import BudgetPolicy
from das.drafter import HistoryDrafter
from das.engine.drafters.engine_model import EngineModel
from das.engine.drafters.head_draft import HeadDraft
from das.engine.drafters.self_draft import SelfDraft
from das.model_drafts.drafter import ModelDrafter
from das.model_drafts.either_or import EitherOr
from das.model_drafts.in_turns import InTurns


def model_drafter(
    self_draft: Mapping[str, Any] | None,
    head: Mapping[str, Any] | None,
    budget: BudgetPolicy,
    history: HistoryDrafter | None,
) -> tuple[ModelDrafter, EngineModel]:
    """Make the drafter for these options of DasOptions. history: the history drafter that drafts beside the model, or
    None. Returns the drafter and its model.
    """
    if self_draft is not None:
        copy = SelfDraft(self_draft["weights"])
        return InTurns(copy, self_draft["passes"], budget.worth, history), copy
    assert head is not None
    assert history is not None
    model = HeadDraft()
    return EitherOr(model, head["passes"], budget.worth, history), model
