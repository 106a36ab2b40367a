"""Argument checks of the history drafter. Each function returns the value in the core's type.

A wrong value or a wrong type raises ValueError with a one-line message.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from operator import index
from pathlib import Path
from typing import Any

import numpy as np

from das.general.arrays import MAX_TOKEN

MAX_TICK = 2**62  # also the longest window, so that differences of ticks fit into int64
MAX_DRAFT = 2**16  # tokens of one draft
WRONG_TOKENS = f"token ids must be whole numbers in 0..{MAX_TOKEN}"


def text(value: Any, name: str) -> str:
    """Check an id. It must be a string: if numbers were allowed, 7 and "7" could be meant for the same problem."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {value!r:.100}: give str({name})")
    return value


def whole_number(value: Any, name: str, lowest: int, highest: int) -> int:
    """Check that a value is an integer in a range."""
    try:
        number = index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r:.100}") from None
    if not lowest <= number <= highest:
        raise ValueError(f"{name} must be in {lowest}..{highest}, got {number}")
    return number


def file_path(value: Any, name: str) -> Path:
    """Convert the path of a file to a Path. Raises ValueError if the value can be no path."""
    try:
        return Path(value)
    except TypeError:
        raise ValueError(f"{name} must be a path, got {value!r:.100}") from None


def size(values: Any) -> int | None:
    """Returns the number of values; None if `values` is no sequence."""
    try:
        return len(values)
    except TypeError:
        return None


def limits(values: Sequence[int]) -> tuple[array[int], int]:
    """Check the limits of drafts, in tokens. Returns them as int64, and the highest of them."""
    try:
        numbers = array("q", values)
    except (TypeError, OverflowError):
        raise ValueError(f"limits must be whole numbers in 0..{MAX_DRAFT}") from None
    highest = max(numbers, default=0)
    if highest > MAX_DRAFT or min(numbers, default=0) < 0:
        raise ValueError(f"limits must be in 0..{MAX_DRAFT}, got {min(numbers)}..{highest}")
    return numbers, highest


def floors(values: Sequence[float]) -> array[float]:
    """Convert floors (the least probability of a whole draft) to float64. NaN is not refused here, but in the core."""
    try:
        return array("d", values)
    except (TypeError, OverflowError):
        raise ValueError("floors must be numbers") from None


def flat_tokens(lists: Sequence[Sequence[int] | np.ndarray]) -> tuple[array[int], array[int]]:
    """Returns the concatenated token lists as int32, and their offsets, int64 [lists + 1]. Raises ValueError for ids
    that are too large. Negative ids are refused later, by the native core."""
    if not set(map(type, lists)) <= {list}:  # lists are vLLM's form
        lists = [each.tolist() if isinstance(each, np.ndarray) else each for each in lists]
    try:
        return array("i", chain.from_iterable(lists)), array("q", accumulate(map(len, lists), initial=0))
    except (OverflowError, TypeError):
        raise ValueError(WRONG_TOKENS) from None
