"""A child of os.fork() can use the drafters of its parent: no thread uses a drafter while the process forks.

Otherwise a lock could stay with a thread that the child does not have, and the child would wait for it for ever.
"""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Protocol


class Held(Protocol):
    """The part of a drafter that is needed here."""

    def hold(self) -> None: ...
    def release(self, in_child: bool) -> None: ...


DRAFTERS: weakref.WeakSet[Held] = weakref.WeakSet()
_held: list[Held] = []  # by the thread that forks


def _hold_all() -> None:
    for drafter in list(DRAFTERS):
        drafter.hold()
        _held.append(drafter)


def _release_all(in_child: bool) -> None:
    while _held:
        _held.pop().release(in_child)


os.register_at_fork(
    before=_hold_all, after_in_parent=partial(_release_all, False), after_in_child=partial(_release_all, True)
)
