"""What counts as a reward. Every path by which one enters a training or an evaluation asks `reward_of`.

A reward is a finite number in float32, the type in which TRL computes with it: an int, a float, a bool (true is 1), or
an array or tensor that holds one such number. Texts are none, even if they look like numbers. None means that the
function abstains: the response gets no reward, and leaves the mean of its group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from decimal import Decimal
from itertools import islice
from numbers import Real
from typing import Any

_LARGEST = (2 - 2**-23) * 2.0**127  # of float32
_SHOWN = 80  # characters of a wrong value that an error shows
RULE = "a reward is a finite number, or None for a response without one"


class RewardError(ValueError):
    """A reward function failed, or returned something else than rewards, or the data give it an answer or tests that
    nothing can be judged by. The message says which, in a line."""


def reward_of(value: Any) -> float | None:
    """Return a reward as a float; None if it abstains. Raises ValueError if it is no reward (see above)."""
    if value is None:
        return None
    one = value
    if hasattr(value, "item") and hasattr(value, "shape") and math.prod(value.shape) == 1:
        one = value.item()  # of NumPy or torch
    if isinstance(one, Real | Decimal):
        try:
            reward = float(one)
        except (OverflowError, ValueError):  # a whole number beyond float64, a signalling NaN
            reward = math.nan
        if abs(reward) <= _LARGEST:
            return reward
    raise ValueError(f"{shown(value)}: {RULE}")


def rewards_of(returned: Any, wanted: int, name: str) -> list[float | None]:
    """Return what a reward function returned as `wanted` rewards. name: how the user named the function.

    Raises RewardError if it is no sequence of as many rewards. An error that a generator raises passes through.
    """
    if isinstance(returned, str | bytes | Mapping | Set) or not isinstance(returned, Iterable):
        what = "nothing" if returned is None else shown(returned)
        raise RewardError(f"{name} returned {what}: return a list with a reward for each of the {wanted} responses")
    try:
        values = list(islice(returned, wanted + 1))
    except TypeError:  # NumPy and torch have arrays without a dimension, which cannot be iterated
        if getattr(returned, "shape", None) != ():
            raise
        raise RewardError(f"{name} returned {shown(returned)}: return a list, a reward for each response") from None
    if len(values) != wanted:
        found = f"more than {wanted}" if len(values) > wanted else str(len(values))
        raise RewardError(f"{name} returned {found} rewards for {wanted} responses: return one for each, in order")
    rewards = []
    for position, value in enumerate(values):
        try:
            rewards.append(reward_of(value))
        except ValueError as error:
            raise RewardError(f"{name}, response {position} of {wanted} (counted from 0): {error}") from None
    return rewards


def shown(value: Any) -> str:
    """Return a wrong value as a short text with its type, for an error."""
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + ' ...'} ({type(value).__name__})"
