"""Mistakes in a drafter of the user's own are one clear line. That it changes no token: tests/identity/."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import das
from das.budget import make_budget
from das.drafter import Draft, Drafter, make_drafter


class Own(Drafter):
    """Drafts what it was given."""

    def __init__(self, tokens: Sequence[int] = (), probs: Sequence[float] = ()):
        self.draft = Draft(list(tokens), list(probs))

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        pass

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        pass

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        return [self.draft] * len(requests)

    def end(self, request: str, keep: bool = True) -> None:
        pass


class Unfinished(Drafter):
    """Lacks three methods."""

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        pass


@pytest.mark.parametrize(
    ("tokens", "probs", "words"),
    [
        ([1, 2, 3], [0.5] * 3, "Own.propose drafted .* asked for at most"),
        ([1, 2], [0.5], "1 probs for 2 tokens"),
        ([1, 99], [0.5, 0.5], "a token id is outside of 0..49"),
        ([1], [1.5], "a probability is outside of 0..1"),
    ],
)
def test_impossible_drafts_are_one_line(tokens: list[int], probs: list[float], words: str) -> None:
    drafter = Own(tokens, probs)
    drafter.vocab = 50
    with pytest.raises(ValueError, match=words):
        drafter.propose_batch(["a", "b"], [2, 2])


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"name": "nonsense"}, ValueError, "unknown drafter 'nonsense': choose history, or name a class"),
        ({"name": "no_such_module:Class"}, ValueError, "there is no module 'no_such_module'"),
        ({"name": f"{__name__}:Sequence"}, ValueError, "has no subclass 'Sequence' of das's Drafter"),
        ({"name": f"{__name__}:Unfinished"}, ValueError, "it lacks end, observe, propose"),
        ({"name": f"{__name__}:Own", "speed": 3}, TypeError, "drafter Own: got an unexpected keyword argument 'speed'"),
        ({"windows": 1}, TypeError, "windows"),
    ],
)
def test_impossible_drafters_are_refused_before_anything_is_built(
    settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        das.engine_arguments(drafter=settings)


def test_names_alone_are_enough() -> None:
    assert isinstance(make_drafter({"name": f"{__name__}:Own"}), Own)
    arguments = das.engine_arguments(drafter=f"{__name__}:Own", budget="unlimited")
    assert arguments["additional_config"]["das"] == {
        "drafter": {"name": f"{__name__}:Own"},
        "budget": {"name": "unlimited"},
    }
    with pytest.raises(ValueError, match="no other drafter drafts; use method das"):
        das.engine_arguments("self_draft", drafter=f"{__name__}:Own", budget="fixed")
    with pytest.raises(ValueError, match="has no subclass 'Own' of das's BudgetPolicy"):
        make_budget({"name": f"{__name__}:Own"})
