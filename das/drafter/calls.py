"""Call the native core to make drafts. The functions take Python sequences and return arrays. Every pass waits for
them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from das.drafter import checks, native
from das.drafter.draft import Drafts

# (handles, limits, floors, the highest limit, which is the length of a row)
Arguments: TypeAlias = "tuple[array[int], array[int], array[float] | None, int]"


def arguments(
    handles: Sequence[int], limits: Sequence[int], floors: Sequence[float] | None, name: str, highest: int
) -> Arguments:
    """Check the arguments of a drafting call and convert them for the core. name: what errors call `limits`. highest:
    the largest limit allowed. Raises ValueError with a one-line message."""
    limit_array, stride = checks.limits(limits, name, highest)
    floor_array = None if floors is None else checks.floors(floors)
    n = len(handles)
    if len(limit_array) != n or (floor_array is not None and len(floor_array) != n):
        given = "" if floor_array is None else f", {len(floor_array)} floors"
        raise ValueError(f"{n} requests but {len(limit_array)} {name}{given}")
    return array("q", handles), limit_array, floor_array, stride


def drafts(
    lib: ctypes.CDLL,
    core: int,
    requests: Sequence[str],
    call: Arguments,
    given: tuple[array[int], array[int]] | None = None,
) -> Drafts:
    """Make a draft for each request, one in each row. given: hypothetical tokens that they continue, as
    checks.flat_tokens returns them; None: they continue the texts themselves."""
    handles, limits, floors, stride = call
    n = len(handles)
    cells = n * stride
    tokens, probs, counts = array("i", bytes(4 * cells)), array("d", bytes(8 * cells)), array("q", bytes(8 * n))
    of_given = (None, None) if given is None else [each.buffer_info()[0] for each in given]
    of_floors = None if floors is None else floors.buffer_info()[0]
    asked, longest, into, beside, made = [each.buffer_info()[0] for each in (handles, limits, tokens, probs, counts)]
    code = lib.das_propose(core, n, asked, *of_given, longest, of_floors, stride, into, beside, made)
    if code:
        _refuse(code, requests)
    return Drafts(
        np.frombuffer(tokens, np.int32).reshape(n, stride),
        np.frombuffer(probs, np.float64).reshape(n, stride),
        np.frombuffer(counts, np.int64),
    )


def _refuse(code: int, requests: Sequence[str]) -> None:
    """Raise the error for a negative result of the core. code: that result. requests: the requests of the call."""
    if code == native.BUSY:
        twice = next(r for i, r in enumerate(requests) if r in requests[:i])
        raise ValueError(f"request {twice!r} is named twice: name each request once")
    native.check(code)
