"""Run a solution inside the sandbox: as a function that answers calls, or as a program that reads standard input."""

from __future__ import annotations

import atexit
import builtins
import importlib
import io
import os
import random
import struct
import sys
import threading
from contextlib import suppress
from typing import Any

from rewards import values

# Names that LeetCode's solutions use without importing them. The fork server loads them once; every child has its own
# copy. All 1,889 solutions of DeepCoder's file import nothing else.
_STARS = (
    "operator", "math", "itertools", "functools", "collections", "heapq", "bisect", "string", "random", "typing",
    "sortedcontainers",
)  # fmt: skip
_MODULES = (
    "array", "bisect", "collections", "copy", "datetime", "decimal", "enum", "fractions", "functools", "hashlib",
    "heapq", "io", "itertools", "json", "math", "numpy", "operator", "queue", "random", "re", "statistics", "string",
    "sys", "textwrap", "time", "typing",
)  # fmt: skip
# What a solution may import besides. A child can open no file, so it has what is loaded here: the parts of Python that
# compute, those that solutions import and hardly use, those that Python loads when it needs them, and NumPy.
_FURTHER = (
    "abc", "argparse", "ast", "base64", "binascii", "builtins", "calendar", "cmath", "codecs", "collections.abc",
    "colorsys", "concurrent.futures", "contextlib", "csv", "ctypes", "dataclasses", "difflib", "doctest", "errno",
    "fcntl", "gc", "getpass", "glob", "graphlib", "hmac", "html", "inspect", "itertools", "keyword", "locale",
    "logging", "mmap", "multiprocessing", "numbers", "os", "pathlib", "pickle", "platform", "pprint", "reprlib",
    "resource", "secrets", "select", "shlex", "shutil", "signal", "socket", "stat", "struct", "subprocess",
    "tempfile", "threading", "timeit", "token", "tokenize", "traceback", "types", "unicodedata", "unittest", "uuid",
    "warnings", "weakref", "zlib", "_strptime", "encodings.ascii", "encodings.cp1252", "encodings.idna",
    "encodings.latin_1", "encodings.utf_16", "encodings.utf_32", "numpy.fft", "numpy.linalg", "numpy.ma",
    "numpy.polynomial", "numpy.random",
)  # fmt: skip
_MAX_RECURSION = 100_000  # nested calls; LeetCode's own judge raises Python's limit as well
MAX_DIGITS = 50_000  # of a whole number that is read or written; LiveCodeBench's judge allows as many


def prelude() -> dict[str, Any]:
    """Collect the names that a solution function can use. None replaces a built-in: math.pow must not hide pow."""
    names: dict[str, Any] = {}
    for name in _STARS:
        module = importlib.import_module(name)
        public = getattr(module, "__all__", [key for key in vars(module) if not key.startswith("_")])
        names.update((key, getattr(module, key)) for key in public if not hasattr(builtins, key))
    names.update((name, importlib.import_module(name)) for name in _MODULES)
    names.update(ListNode=values.ListNode, TreeNode=values.TreeNode)
    return names


PRELUDE = prelude()
for _module in _FURTHER:
    importlib.import_module(_module)
PRELUDE["numpy"].random.seed(0)  # loads the module here, so that children need not


def read_frame(fd: int) -> bytes | None:
    """Read one message, which follows its length in bytes. Returns None at the end of the stream."""
    header = _read(fd, 4)
    return None if header is None else _read(fd, struct.unpack("<I", header)[0])


def _read(fd: int, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = os.read(fd, size - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def write_frame(fd: int, data: bytes) -> None:
    """Write one message after its length in bytes."""
    view = memoryview(struct.pack("<I", len(data)) + data)
    while view:
        view = view[os.write(fd, view) :]


def _start() -> None:
    random.seed(0)  # Python would draw a new seed in every forked process
    sys.setrecursionlimit(_MAX_RECURSION)
    sys.set_int_max_str_digits(MAX_DIGITS)
    sys.argv = ["solution"]
    vars(threading)["Thread"] = _Thread


class _Thread(threading.Thread):
    """A thread that runs in the thread that starts it.

    Contest programs start one thread for a larger stack, and join it. A solution may not start threads, and its own
    stack is large already.
    """

    def start(self) -> None:
        with suppress(SystemExit):  # it ends a thread, and not the program
            self.run()

    def join(self, timeout: float | None = None) -> None:
        """Return at once, because the thread's function has returned."""


def answer_calls(source: str, entry: str, requests: int, replies: int) -> None:
    """Define the solution, then answer each call of `entry` with ["value", value] or ["error", text].

    requests, replies: file descriptors. Returns when there are no more requests.
    """
    _start()
    namespace = {**PRELUDE, "__name__": "solution"}
    try:
        exec(compile(source, "solution", "exec"), namespace)
        function = eval(entry, namespace)
        reply = ["value", None]
    except BaseException as error:
        reply = ["error", _describe(error)]
    write_frame(replies, values.encode(reply))
    while (frame := read_frame(requests)) is not None:
        arguments, keywords = values.decode(frame)
        try:
            data = values.encode(["value", function(*arguments, **keywords)])
        except BaseException as error:
            data = values.encode(["error", _describe(error)])
        write_frame(replies, data)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {str(error)[:200]}"
    except BaseException:  # the solution wrote its __str__
        return type(error).__name__


def run_program(source: str) -> None:
    """Run the solution as a main program. Raises the solution's exception, SystemExit included.

    When this function returns or raises, the output is complete, as after Python's exit: atexit functions have run, and
    files that the program left open are flushed.
    """
    _start()
    atexit._clear()  # the functions that are registered so far belong to the fork server
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        exec(compile(source, "solution", "exec"), namespace)
    finally:
        atexit._run_exitfuncs()
        streams: tuple[Any, ...] = (sys.stdout, sys.__stdout__)
        for stream in streams:
            with suppress(AttributeError, ValueError):  # the program replaced it by something else, or closed it
                stream.flush()
        for value in namespace.values():
            if type(value) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
                with suppress(OSError, ValueError):
                    value.flush()
