"""Texts of the native core: a request's, and the finished ones that problems see of each other."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from das.drafter import native
from das.drafter.constants import SHARED_TEXTS


@dataclass
class Store:
    """A problem's index: its handle, how many sequences it holds, and its live prompts (handle, live requests)."""

    handle: int
    sequences: int
    prompts: dict[bytes, list[int]]


@dataclass
class Request:
    """A request: problem, its store's key, its sequence's handle, context tokens before its response, its prompt's key.

    copy: the handle of the text that other problems see, -1 for none.
    """

    problem: str
    key: str
    handle: int
    context: int
    prompt: bytes | None
    length: int = 0
    copy: int = -1


class SharedTexts:
    """Copies of finished texts, at most `tokens` in all, that other problems see; 0: none."""

    def __init__(self, lib: ctypes.CDLL, core: int, tokens: int) -> None:
        self._lib, self._core, self._room = lib, core, tokens
        # By problem with their clocks, and by handle; oldest first.
        self._of: dict[str, list[tuple[int, Request]]] = {}
        self._all: dict[int, Request] = {}
        self._tokens = 0

    def add(self, past: Request, clock: int) -> None:
        """Copy a finished text, if it is among its problem's first of this clock.

        A problem shares its SHARED_TEXTS newest such texts; the oldest texts of all make room.
        """
        mine = self._of.get(past.key, [])
        if past.length > self._room or sum(c == clock for c, _ in mine) == SHARED_TEXTS:
            return
        past.copy = native.check(self._lib.das_share(self._core, past.handle, past.context))
        native.check(self._lib.das_end(self._core, past.copy, 1, clock))
        mine.append((clock, past))
        self._of[past.key] = mine
        self._all[past.copy] = past
        self._tokens += past.length
        if len(mine) > SHARED_TEXTS:
            self.drop(mine[0][1])
        while self._tokens > self._room:
            self.drop(next(iter(self._all.values())))

    def drop(self, past: Request) -> None:
        """Take a text's copy back, if it has one."""
        if past.copy < 0:
            return
        native.check(self._lib.das_end(self._core, past.copy, 0, 0))
        del self._all[past.copy]
        self._tokens -= past.length
        past.copy = -1
        left = [entry for entry in self._of[past.key] if entry[1] is not past]
        if left:
            self._of[past.key] = left
        else:
            del self._of[past.key]
