"""Compare what a solution gives with what is expected, as LiveCodeBench's checker does, which DeepCoder's reward uses.

Numbers count as equal within 1e-6, absolute or relative. Whole numbers are compared exactly where both sides write them
as whole numbers, and words always.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, DecimalException
from typing import Any

_TOLERANCE = Decimal("1e-6")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,6})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_CONTEXT = Context(prec=50)


def same_output(output: str, expected: str) -> bool:
    """Return whether the standard output of a program is as expected.

    It is if all words are equal, on whichever lines they stand. It also is if each line has the same words, or numbers
    of the same values.
    """
    if output.split() == expected.split():
        return True
    lines, expected_lines = ([line for line in text.split("\n") if line.strip()] for text in (output, expected))
    return len(lines) == len(expected_lines) and all(map(_same_line, lines, expected_lines))


def _same_line(line: str, expected: str) -> bool:
    words, expected_words = line.split(), expected.split()
    if words == expected_words:
        return True
    return len(words) == len(expected_words) and all(map(_same_number, words, expected_words))


def _same_number(word: str, expected: str) -> bool:
    if not (_NUMBER.fullmatch(word) and _NUMBER.fullmatch(expected)):
        return False
    exactly = bool(_WHOLE.fullmatch(word) and _WHOLE.fullmatch(expected))
    return _near(Decimal(word), Decimal(expected), exactly, relative=not _WHOLE.fullmatch(expected))


def same_value(value: Any, expected: Any) -> bool:
    """Return whether the result of a function is as expected: equal, or a float that is near enough. The items of lists
    and tuples, and the values of dicts, are compared in this way too."""
    if value == expected:
        return True
    if isinstance(value, list | tuple) and type(value) is type(expected):
        return len(value) == len(expected) and all(map(same_value, value, expected))
    if isinstance(value, dict) and isinstance(expected, dict):
        return value.keys() == expected.keys() and all(same_value(value[key], expected[key]) for key in expected)
    if not (_is_number(value) and _is_number(expected)):
        return False
    exactly = isinstance(value, int) and isinstance(expected, int)
    return _near(Decimal(value), Decimal(expected), exactly, relative=isinstance(expected, float))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(value: Decimal, expected: Decimal, exactly: bool, relative: bool) -> bool:
    """Return whether two numbers are equal, or within the tolerance. relative: whether a share of `expected` is allowed
    too: not for an expected whole number, of which each digit counts."""
    if exactly or not (value.is_finite() and expected.is_finite()):
        return value == expected
    try:
        allowed = max(_TOLERANCE, _CONTEXT.multiply(_TOLERANCE, abs(expected))) if relative else _TOLERANCE
        return abs(_CONTEXT.subtract(value, expected)) <= allowed
    except DecimalException:  # an exponent beyond all measure
        return False
