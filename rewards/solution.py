"""Runs inside the sandbox: a solution's code, as a function that answers calls or as a program with standard input."""

from __future__ import annotations

import builtins
import importlib
import os
import random
import struct
import sys
from typing import Any

from rewards import values

# What LeetCode's solutions use without importing it. Loaded once, by the fork server; every child has its own copy.
_STARS = (
    "operator", "math", "itertools", "functools", "collections", "heapq", "bisect", "string", "random", "typing",
    "sortedcontainers",
)  # fmt: skip
_MODULES = (
    "array", "bisect", "collections", "copy", "datetime", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "io", "itertools", "json", "math", "numpy", "operator", "queue", "random", "re", "statistics", "string",
    "sys", "textwrap", "time", "typing",
)  # fmt: skip
_DEEPEST = 100_000  # calls; LeetCode's own judge lifts Python's limit as well


def prelude() -> dict[str, Any]:
    """Names a function finds defined. Never one of Python's built-ins: math.pow must not replace pow."""
    names: dict[str, Any] = {}
    for name in _STARS:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [key for key in vars(module) if not key.startswith("_")])
        names.update((key, getattr(module, key)) for key in public if not hasattr(builtins, key))
    names.update((name, importlib.import_module(name)) for name in _MODULES)
    names.update(ListNode=values.ListNode, TreeNode=values.TreeNode)
    return names


PRELUDE = prelude()
PRELUDE["numpy"].random.seed(0)  # loads it here rather than in every child


def read_frame(fd: int) -> bytes | None:
    """One message, its length before it; None at the end."""
    head = _read(fd, 4)
    return None if head is None else _read(fd, struct.unpack("<I", head)[0])


def _read(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def write_frame(fd: int, data: bytes) -> None:
    """Write one message, its length before it."""
    view = memoryview(struct.pack("<I", len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def _start() -> None:
    random.seed(0)  # Python draws a new seed in every forked process
    sys.setrecursionlimit(_DEEPEST)
    sys.argv = ["solution"]


def answer_calls(source: str, entry: str, requests: int, replies: int) -> None:
    """Define the solution, then answer each call of `entry` with ["value", v] or ["error", text]; ends at the last."""
    _start()
    namespace = {**PRELUDE, "__name__": "solution"}
    try:
        exec(compile(source, "solution", "exec"), namespace)
        function = eval(entry, namespace)
        reply = ["value", None]
    except BaseException as error:
        reply = ["error", _name(error)]
    write_frame(replies, values.encode(reply))
    while (frame := read_frame(requests)) is not None:
        arguments, keywords = values.decode(frame)
        try:
            data = values.encode(["value", function(*arguments, **keywords)])
        except BaseException as error:
            data = values.encode(["error", _name(error)])
        write_frame(replies, data)


def _name(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {str(error)[:200]}"
    except BaseException:  # its __str__ is the solution's
        return type(error).__name__


def run_program(source: str) -> None:
    """Run the solution as a main program; an exception or a non-zero exit ends this process with a status not 0."""
    _start()
    try:
        exec(compile(source, "solution", "exec"), {"__name__": "__main__"})
    finally:
        sys.stdout.flush()
