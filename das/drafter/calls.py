"""Call the native core to make drafts. The functions take Python sequences and return arrays. Every pass waits for
them."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from das.drafter import checks, native
from das.drafter.draft import Drafts, TreeDrafts

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


def chains(
    lib: ctypes.CDLL, core: int, requests: Sequence[str], call: Arguments, packed: bool
) -> tuple[array[int], array[float], array[int]]:
    """Make chains (drafts without branches). Returns tokens, their probabilities, and each row's number of tokens.

    Rows are as long as the highest limit, or follow each other without gaps if packed.
    """
    handles, limits, floors, stride = call
    n = len(handles)
    tokens, probs, counts = (
        array("i", bytes(4 * n * stride)),
        array("d", bytes(8 * n * stride)),
        array("q", bytes(8 * n)),
    )
    code = lib.das_propose(
        core,
        n,
        handles.buffer_info()[0],
        limits.buffer_info()[0],
        None if floors is None else floors.buffer_info()[0],
        stride,
        packed,
        tokens.buffer_info()[0],
        probs.buffer_info()[0],
        counts.buffer_info()[0],
    )
    if code:
        _refuse(code, requests)
    return tokens, probs, counts


def chains_as_arrays(lib: ctypes.CDLL, core: int, requests: Sequence[str], call: Arguments) -> Drafts:
    """Make chains. Returns them as arrays with one row for each request."""
    tokens, probs, counts = chains(lib, core, requests, call, packed=False)
    shape = len(counts), call[3]
    return Drafts(
        np.frombuffer(tokens, np.int32).reshape(shape),
        np.frombuffer(probs, np.float64).reshape(shape),
        np.frombuffer(counts, np.int64),
    )


def chains_behind(
    lib: ctypes.CDLL, core: int, requests: Sequence[str], given: tuple[array[int], array[int]], call: Arguments
) -> Drafts:
    """Make chains that continue hypothetical tokens, one row for each request. given: these tokens, as
    checks.flat_tokens returns them."""
    handles, limits, floors, stride = call
    n = len(handles)
    tokens, probs, counts = np.empty((n, stride), np.int32), np.empty((n, stride)), np.empty(n, np.int64)
    code = lib.das_propose_behind(
        core,
        n,
        handles.buffer_info()[0],
        given[0].buffer_info()[0],
        given[1].buffer_info()[0],
        limits.buffer_info()[0],
        None if floors is None else floors.buffer_info()[0],
        stride,
        tokens.ctypes.data,
        probs.ctypes.data,
        counts.ctypes.data,
    )
    if code:
        _refuse(code, requests)
    return Drafts(tokens, probs, counts)


def trees(lib: ctypes.CDLL, core: int, requests: Sequence[str], call: Arguments, branch_floor: float) -> TreeDrafts:
    """Make trees (drafts that may branch), one row for each request. All arrays share one allocation."""
    handles, limits, floors, stride = call
    n = len(handles)
    cells = n * stride
    memory = array("q", bytes(8 * (n + 3 * cells)))
    counts = memory.buffer_info()[0]
    probs = counts + 8 * n
    tokens = probs + 16 * cells
    code = lib.das_propose_tree(
        core,
        n,
        handles.buffer_info()[0],
        limits.buffer_info()[0],
        None if floors is None else floors.buffer_info()[0],
        branch_floor,
        stride,
        tokens,
        tokens + 4 * cells,
        probs,
        probs + 8 * cells,
        counts,
    )
    if code:
        _refuse(code, requests)
    floats = np.frombuffer(memory, np.float64, 2 * cells, 8 * n).reshape(2, n, stride)
    ints = np.frombuffer(memory, np.int32, 2 * cells, 8 * n + 16 * cells).reshape(2, n, stride)
    return TreeDrafts(ints[0], ints[1], floats[0], floats[1], np.frombuffer(memory, np.int64, n))


def _refuse(code: int, requests: Sequence[str]) -> None:
    """Raise the error for a negative result of the core. code: that result. requests: the requests of the call."""
    if code == native.BUSY:
        twice = next(r for i, r in enumerate(requests) if r in requests[:i])
        raise ValueError(f"request {twice!r} is named twice: name each request once")
    native.check(code)
