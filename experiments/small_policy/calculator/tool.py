"""The calculator: the tool that the policy may call."""

import re

_EXPRESSION = re.compile(r"(-?\d{1,6})([+-])(\d{1,6})")


def calculator(expression: str) -> str:
    """Add or subtract two whole numbers.

    Args:
        expression: two whole numbers with a sign between them, such as 12+7 or 12-7.

    Returns:
        The expression and its result, such as 12+7=19.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None:
        raise ValueError("expected two whole numbers with + or - between them")
    first, sign, second = int(match[1]), match[2], int(match[3])
    return f"{expression}={first + second if sign == '+' else first - second}"
