"""Reward functions for TRL: each maps conversations and columns of the data set to one number per conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from rewards.brevity import brevity_reward
from rewards.workers import no_counts


class Judge(Protocol):
    """The interface of MathsReward, CodeReward and LibraryReward, which compare response texts with references."""

    def __call__(self, completions: list[str], references: list[str], /) -> list[float]:
        """Return one reward for each completion."""

    def take_counts(self) -> dict[str, int]:
        """Return how often workers died, failed or were too slow since the last call (keys: see rewards/workers.py)."""

    def close(self) -> None:
        """End the worker processes."""


class BrevityConversations:
    """The brevity reward, for conversations. It uses no worker processes, so it has none to count or to end."""

    def __call__(self, completions: list[Sequence[Mapping[str, str]]], **columns: Any) -> list[float]:
        """Return one reward for each conversation."""
        return brevity_reward(_last_turns(completions))

    def take_counts(self) -> dict[str, int]:
        """Return a count of zero for every kind of failure of workers."""
        return no_counts()

    def close(self) -> None:
        """Do nothing."""


class JudgedConversations:
    """A reward for conversations that a judge computes from their text. The judge starts at the first call."""

    def __init__(self, start: Callable[[], Judge], column: str):
        """start: a function that starts and returns the judge. column: the column of the data set with the judge's
        references."""
        self._start, self._column = start, column
        self._judge: Judge | None = None

    def __call__(self, completions: list[Sequence[Mapping[str, str]]], **columns: Any) -> list[float]:
        """Return one reward for each conversation."""
        if self._judge is None:
            self._judge = self._start()
        return self._judge(_last_turns(completions), columns[self._column])

    def take_counts(self) -> dict[str, int]:
        """Return how often workers died, failed or were too slow since the last call (keys: see rewards/workers.py)."""
        return no_counts() if self._judge is None else self._judge.take_counts()

    def close(self) -> None:
        """End the judge's workers, if they started. A later call starts new ones."""
        if self._judge is not None:
            self._judge.close()
            self._judge = None


class OwnConversations:
    """A user's reward function, called as TRL calls it. It runs in the training process, without workers."""

    def __init__(self, function: Callable[..., Sequence[float]]):
        self._function = function

    def __call__(self, completions: list[Sequence[Mapping[str, str]]], **columns: Any) -> list[float]:
        """Return one reward for each conversation."""
        return [float(reward) for reward in self._function(completions, **columns)]

    def take_counts(self) -> dict[str, int]:
        """Return a count of zero for every kind of failure of workers."""
        return no_counts()

    def close(self) -> None:
        """Do nothing."""


ConversationReward = OwnConversations | BrevityConversations | JudgedConversations


def _last_turns(completions: list[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the text of each conversation's last turn: "" for a turn without text, such as a call of a tool."""
    return [conversation[-1].get("content") or "" for conversation in completions]
