"""The core's two calls that draft: Python sequences in, arrays out."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from das.drafter import checks, native
from das.drafter.draft import Drafts, TreeDrafts


@dataclass(frozen=True)
class Call:
    """The checked arguments of one call: the core's handles, and for each the longest draft and its floor."""

    requests: Sequence[str]
    handles: array[int]
    limits: array[int]
    floors: array[float] | None
    stride: int  # the highest limit: the length of a row


def checked(
    requests: Sequence[str],
    handles: Sequence[int],
    limits: Sequence[int],
    floors: Sequence[float] | None,
    limits_name: str,
    highest: int,
) -> Call:
    """Check a call's arguments. Raises ValueError, in one line, where they do not fit."""
    limit_array, stride = checks.limits(limits, limits_name, highest)
    floor_array = None if floors is None else checks.floors(floors)
    n = len(handles)
    if len(limit_array) != n or (floor_array is not None and len(floor_array) != n):
        given = "" if floor_array is None else f", {len(floor_array)} floors"
        raise ValueError(f"{n} requests but {len(limit_array)} {limits_name}{given}")
    return Call(requests, array("q", handles), limit_array, floor_array, stride)


def chains(lib: ctypes.CDLL, core: int, call: Call, packed: bool) -> tuple[array[int], array[float], array[int]]:
    """Drafted tokens, their probabilities, and the number of tokens of each row.

    Rows are `stride` long, or follow each other without gaps if packed.
    """
    n = len(call.handles)
    tokens, probs = array("i", bytes(4 * n * call.stride)), array("d", bytes(8 * n * call.stride))
    counts = array("q", bytes(8 * n))
    out = [a.buffer_info()[0] for a in (tokens, probs, counts)]
    _check(lib.das_propose(core, *_arguments(call), packed, *out), call)
    return tokens, probs, counts


def chains_as_arrays(lib: ctypes.CDLL, core: int, call: Call) -> Drafts:
    """Chains with a row for each request."""
    tokens, probs, counts = chains(lib, core, call, packed=False)
    shape = len(counts), call.stride
    return Drafts(
        np.frombuffer(tokens, np.int32).reshape(shape),
        np.frombuffer(probs, np.float64).reshape(shape),
        np.frombuffer(counts, np.int64),
    )


def trees(lib: ctypes.CDLL, core: int, call: Call) -> TreeDrafts:
    """Trees with a row for each request."""
    n = len(call.handles)
    tokens, parents = np.zeros((2, n, call.stride), np.int32)
    probs, joint = np.zeros((2, n, call.stride))
    counts = np.zeros(n, np.int64)
    out = [a.ctypes.data for a in (tokens, parents, probs, joint, counts)]
    _check(lib.das_propose_tree(core, *_arguments(call), *out), call)
    return TreeDrafts(tokens, parents, probs, joint, counts)


def _arguments(call: Call) -> tuple[int, int, int, int | None, int]:
    floors = None if call.floors is None else call.floors.buffer_info()[0]
    return len(call.handles), call.handles.buffer_info()[0], call.limits.buffer_info()[0], floors, call.stride


def _check(code: int, call: Call) -> None:
    if code == native.BUSY:
        twice = next(r for i, r in enumerate(call.requests) if r in call.requests[:i])
        raise ValueError(f"request {twice!r} is named twice: name each request once")
    native.check(code)
