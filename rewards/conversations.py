"""Reward functions for TRL: each maps conversations and columns of the data set to one reward per conversation."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent import futures
from itertools import dropwhile
from typing import Any, Protocol

from rewards import reward
from rewards.reward import RewardError, rewards_of
from rewards.workers import no_counts

# Files whose code runs before a user's function does.
_BEFORE = (__file__, reward.__file__, futures._base.__file__)


class Judge(Protocol):
    """The interface of MathsReward and CodeReward, which compare response texts with references."""

    def __call__(self, completions: list[str], references: list[str], /) -> list[float]:
        """Return one reward for each completion."""

    def take_counts(self) -> dict[str, int]:
        """Return how often workers died, failed or were too slow since the last call (keys: see rewards/workers.py)."""

    def close(self) -> None:
        """End the worker processes."""


def brevity(completions: list[Sequence[Mapping[str, Any]]], **columns: Any) -> list[float]:
    """Return a reward for each conversation, for quick tests of a whole training: 1 if its last turn is empty, 1/2 if
    it has 100 characters, close to 0 if it is very long.

    Responses to a problem differ in length, so they differ in this reward, and even a random policy gets a gradient.
    """
    return [100.0 / (100.0 + len(text)) for text in _last_turns(completions)]


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
    """A function of the user, or `brevity`, called as TRL calls it. It runs in the training process, without workers.

    What it returns reaches TRL: a reward for each conversation, or None where it abstains. A coroutine is awaited, as
    in TRL: all of them in one event loop, in a thread of its own.
    """

    def __init__(self, function: Callable[..., Any], name: str):
        """name: how the user named the function, for errors."""
        self._function, self._name = function, name
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, completions: list[Sequence[Mapping[str, str]]], **columns: Any) -> list[float | None]:
        """Return one reward for each conversation; None where the function abstains. Raises RewardError if it fails or
        returns something else."""
        try:
            returned = self._function(completions, **columns)
            if inspect.isawaitable(returned):
                returned = self._awaited(returned)
            return rewards_of(returned, len(completions), self._name)
        except RewardError:
            raise
        except Exception as error:  # the user's code may raise anything, and its author must learn where
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300].removesuffix(":")
            raise RewardError(f"{self._name} raised {text}{_place(error)}") from error

    def _awaited(self, returned: Awaitable[Any]) -> Any:
        async def result() -> Any:
            return await returned

        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(result(), self._loop).result()

    def take_counts(self) -> dict[str, int]:
        """Return a count of zero for every kind of failure of workers."""
        return no_counts()

    def close(self) -> None:
        """Do nothing: there are no workers, and the event loop's thread ends with the process."""


ConversationReward = OwnConversations | JudgedConversations


def _last_turns(completions: list[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the text of each conversation's last turn: "" for a turn without text, such as a call of a tool."""
    return [conversation[-1].get("content") or "" for conversation in completions]


def _place(error: Exception) -> str:
    """Return the file and line where a function of the user failed: the last one in the file that das called first.
    Empty if the call itself failed."""
    frames = list(dropwhile(lambda frame: frame.filename in _BEFORE, traceback.extract_tb(error.__traceback__)))
    if not frames:
        return ""
    own = [frame for frame in frames if frame.filename == frames[0].filename][-1]
    return f" ({own.filename}, line {own.lineno})"
