"""Find differences in notation that math-verify overlooks when it takes different answers for equal.

math-verify drops the base of a numeral (52_8 becomes 52), reads the set {0, 1} like the pair (0, 1), and computes with
infinity, so that twice infinity is infinity. These checks can make an answer wrong, but never right.
"""

from __future__ import annotations

import re

_SPACING = re.compile(r"\s|\$|\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])")
# Matches a numeral with a subscript: 52_8, 52_{8}, {52}_8, \text{52}_{\text{eight}}, 1A_{16}. Not the 5 of C^5_3.
_NUMERAL = re.compile(
    r"(?<![\w^{}.])(?:(?:\\(?:text|mathrm|mathbf))?\{)?\d[\dA-F.]*\}?_(?:\{(?:\\(?:text|mathrm)\{)?([^{}]*)\}|(.))"
)
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {word: str(number) for number, word in enumerate(_NUMBERS, start=2)}
_BRACED_INFINITY = re.compile(r"\{([+-]?\\infty)\}")
_INFINITE = re.compile(r"[+-]?\\infty")


def may_be_equal(answer: str, gold: str) -> bool:
    """Return whether the notation of two answers allows that they are equal. answer, gold: LaTeX without a box."""
    answer, gold = (_BRACED_INFINITY.sub(r"\1", _SPACING.sub("", text)).rstrip(".") for text in (answer, gold))
    if _bases(gold) not in (_bases(answer), _bases(answer.rsplit("=", 1)[-1])):  # 52_8=42_{10} may say 42
        return False
    if (_is_set(answer) and _is_tuple(gold)) or (_is_tuple(answer) and _is_set(gold)):
        return False
    return not _INFINITE.fullmatch(gold) or bool(_INFINITE.fullmatch(answer.rsplit("=", 1)[-1]))


def _bases(text: str) -> set[str]:
    """Return the bases of the numerals in a text. Base ten is left out, because numerals without a base have it."""
    subscripts = {(braced or single).strip("()") for braced, single in _NUMERAL.findall(text)}
    return {_BASES.get(subscript, subscript) for subscript in subscripts} - {"10"}


def _is_set(text: str) -> bool:
    r"""Return whether a text is a set that lists its elements, none of which is a tuple: \{0,1\}."""
    listed = text.startswith("\\{") and text.endswith("\\}") and text[2:3] not in ("(", "[")
    return listed and not any(word in text for word in (":", "|", "\\mid", "\\in", "\\cup", "\\cap", "\\setminus"))


def _is_tuple(text: str) -> bool:
    """Return whether a text is a tuple or an interval of numbers: (0,1), [0,1)."""
    inside = text[1:-1]
    return text[:1] in ("(", "[") and text[-1:] in (")", "]") and "," in inside and not re.search(r"[()\[\]]", inside)
