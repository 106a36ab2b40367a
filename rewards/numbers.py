"""Find numbers that math-verify takes for equal, only because their difference is small beside 1.

It compares exact numbers to 15 decimal places, and decimals to 6. So 2^-98 equals 2^-99. These checks are relative to
the numbers. They can make an answer wrong, but never right.
"""

from __future__ import annotations

from typing import Any

_EXACT = 1e-12  # relative difference of two exact numbers that are equal, computed to 30 digits
_DECIMAL = 1e-3  # of a decimal and what it stands for: 6 decimal places of any number from .001 on are as close
_LISTS = ("Tuple", "FiniteSet", "Interval", "Matrix")


def may_be_equal(answer: Any, gold: Any) -> bool:
    """Return whether the numbers in two answers, as math-verify parsed them, allow that they are equal."""
    ours, theirs = (sorted(_numbers(each), key=_place) for each in (answer, gold))
    return len(ours) != len(theirs) or all(map(_close, ours, theirs))


def _numbers(parsed: Any) -> list[Any]:
    """Return the numbers that an answer consists of: itself, the members of a list, or what a letter is equal to."""
    if getattr(parsed, "is_number", False):
        return [parsed]
    names = {kind.__name__ for kind in type(parsed).__mro__}
    if "MatrixBase" in names or names & set(_LISTS):
        members = parsed.flat() if "MatrixBase" in names else parsed.args
        return [number for member in members for number in _numbers(member)]
    if "Equality" in names and parsed.lhs.is_Symbol:
        return _numbers(parsed.rhs)
    return []


def _place(number: Any) -> tuple[Any, Any]:
    return tuple(part.evalf() for part in number.as_real_imag())


def _close(one: Any, other: Any) -> bool:
    if one == other:
        return True
    if one.is_Rational and other.is_Rational:
        return False
    if 0 in (one, other) and not (one + other).is_Float:  # math-verify has computed it
        return True
    size = max(abs(one).evalf(30), abs(other).evalf(30))
    if not size.is_comparable or size.is_infinite:
        return True
    from sympy import Float

    tolerance = _DECIMAL if one.has(Float) or other.has(Float) else _EXACT
    return bool(abs((one - other).evalf(30)) <= tolerance * size)
