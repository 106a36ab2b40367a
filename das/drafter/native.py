"""The native core of the history drafter (C code), called through ctypes: its types and functions, and the weights with
which it starts.

`native.c` and its headers depend on libc only. One thread of Python at a time may use a drafter.
"""

from __future__ import annotations

import ctypes
import json
import secrets
from functools import cache
from pathlib import Path

import numpy as np

from das.general.native import load_native

BUSY = -5  # error of the drafting calls: a request is named twice
SOURCE = Path(__file__).with_name("native.c")
# The arrays of `Weights` (recall.h), by name.
SIZES: dict[str, tuple[int, ...]] = {
    "match": (2, 16),
    "source": (19,),
    "rank": (11,),
    "none": (16, 8),
    "late": (16,),
    "recall": (16, 5),
}
# The weights with which a new drafter starts; it goes on learning them. They were learned by replaying recordings:
# PRIOR, where the noise is unknown, on the first four problems of three traces (areal_nemotron_base,
# arctic_prob0019_tokenids, areal_salloc), NOISY_PRIOR, where it is known, on runs that recorded distributions. Each
# array is flat, in C order.
_priors: dict[str, dict[str, list[float]]] = json.loads(Path(__file__).with_name("prior.json").read_text())
PRIOR, NOISY_PRIOR = _priors["noise unknown"], _priors["noise known"]


class Key(ctypes.Structure):
    """The key of an index's hashes. Mirrors the C struct `Key` of index.h."""

    _fields_ = [("factor", ctypes.c_uint64), ("start", ctypes.c_uint32)]

    @classmethod
    def random(cls) -> Key:
        """Returns a new key. Drafts do not depend on it."""
        return cls(secrets.randbits(64) | 1, secrets.randbits(32))


class Config(ctypes.Structure):
    """The options of a core. Mirrors the C struct `Config` of lookup.h, field by field."""

    _fields_ = [
        ("max_match", ctypes.c_int32),
        ("max_candidates", ctypes.c_int32),
        ("fallback_visits", ctypes.c_int32),
        ("cross_problem_candidates", ctypes.c_int32),
        ("visits", ctypes.c_int32 * 3),
        ("places", ctypes.c_int32),
        ("agreeing", ctypes.c_int32),
        ("remembers", ctypes.c_int32),
        ("key", Key),
        ("min_prob", ctypes.c_double),
    ]


class Job(ctypes.Structure):
    """A pass whose tokens the thread takes in, and drafts behind. Mirrors the C struct `Job` of thread.h."""

    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("n", "batch", "width", "stride", "late_width", "learns")],
        *[(name, ctypes.c_void_p) for name in ("handles", "rows", "left", "caps", "floors", "stops", "stop_ends")],
        *[(name, ctypes.c_void_p) for name in ("tokens", "pairs", "num_drafted")],
        *[(name, ctypes.c_int64) for name in ("drafted_stride", "number")],
        *[(name, ctypes.c_void_p) for name in ("arrived", "late", "late_counts", "late_probs", "mark")],
        *[(name, ctypes.c_void_p) for name in ("kept", "drafts", "probs", "counts", "limits")],
        ("code", ctypes.c_int64),
    ]


_PTR, _I32, _I64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_SIGNATURES: dict[str, tuple[type | None, list[type]]] = {
    "das_new": (_PTR, [ctypes.POINTER(Config)]),
    "das_restart": (_I32, [_PTR, _PTR]),
    "das_free": (None, [_PTR]),
    "das_weights": (None, [_PTR, _PTR]),
    "das_store_new": (_I32, [_PTR]),
    "das_store_end": (_I32, [_PTR, _I32]),
    "das_seq_new": (_I64, [_PTR, _I32, _I32, _I32, _I64, _I32]),
    "das_share": (_I64, [_PTR, _I64, ctypes.c_uint32]),
    "das_extend": (_I32, [_PTR, _I64, _PTR, _PTR, _I64, _I32]),
    "das_append": (_I32, [_PTR, _I32, _PTR, _PTR, _PTR, _PTR, _I32]),
    "das_read": (None, [_PTR, _I64, _PTR, _PTR]),
    "das_end": (_I32, [_PTR, _I64, _I32, _I64]),
    "das_set_tick": (_I32, [_PTR, _I64]),
    "das_propose": (_I32, [_PTR, _I32, *[_PTR] * 3, _I64, *[_PTR] * 3]),
    "das_post": (_I32, [_PTR, ctypes.POINTER(Job)]),
    "das_wait": (None, [_PTR]),
}


def prior_weights() -> np.ndarray:
    """Returns the weights with which a new drafter starts, float64: `Weights` where the noise is unknown, then where it
    is known."""
    return np.array([value for prior in (PRIOR, NOISY_PRIOR) for name in SIZES for value in prior[name]], np.float64)


def check(code: int) -> int:
    """Return the core's result. Raises MemoryError or ValueError if it is a (negative) error code."""
    if code >= 0:
        return code
    if code == -1:
        raise MemoryError("history drafter: out of memory")
    if code == -2:
        raise ValueError(f"token ids must be whole numbers in 0..{2**31 - 1}")
    if code == -4:
        raise ValueError("a request ended while a draft for it was being made")
    if code == -6:
        raise ValueError("floors must be numbers, not NaN")
    raise ValueError("history drafter: a sequence or a problem's history exceeds 2**31 tokens")


@cache
def lib() -> ctypes.CDLL:
    """Returns the compiled library with its argument types declared. The first call builds it."""
    return typed(load_native(SOURCE))


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes the argument types of the library's functions. Returns the library."""
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
