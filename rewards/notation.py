"""Find differences in notation that math-verify overlooks when it takes different answers for equal.

math-verify drops the base of a numeral (52_8 becomes 52), reads the set {0, 1} like the pair (0, 1) and 5, 5 as the set
{5}, computes with infinity, so that twice infinity is infinity, and skips words. These checks can make an answer wrong,
but never right.
"""

from __future__ import annotations

import re

_SPACING = re.compile(r"\s|\$|\\[,;:! ]|\\(?:left|right|displaystyle)(?![a-zA-Z])")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{([^{}]*)\}")
_OPERATOR = re.compile(r"\\(?:cdot|times|div|pm)(?![a-zA-Z])")
# Matches a base in words: \text{ (base 8)}, \text{base }8, \text{ in base eight}.
_WORDED_BASE = re.compile(r"\\(?:text|mathrm)\{\s*\(?\s*(?:in\s+)?base[\s-]*(?:(\w+)\s*\)?\s*\}|\}\s*\{?(\w+)\}?)")
# Matches a numeral with a subscript: 52_8, 52_{8}, {52}_8, 52^1_8, \text{52}_{\text{eight}}, 1A_{16}. Not C^5_3's 5.
_NUMERAL = re.compile(
    r"(?<![\w^{}.])(?:(?:\\(?:text|mathrm|mathbf))?\{)?\d[\dA-F.]*\}?(?:\^(?:\{[^{}]*\}|.))?"
    r"_(?:\{(?:\\(?:text|mathrm)\{)?([^{}]*)\}|(.))"
)
_HEXADECIMAL = re.compile(r"(?<![\w\\])\d[\dA-Fa-f]*h(?![a-zA-Z])")  # 53h; a unit stands apart: 53 h, 53\text{ h}
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {word: str(number) for number, word in enumerate(_NUMBERS, start=2)}
_BRACED_INFINITY = re.compile(r"\{([+-]?\\infty)\}")
_INFINITE = re.compile(r"\(?[+-]?\\infty\)?")
# Matches an infinity that is a bound, an element or a side of a relation: nothing is computed with it.
_PLAIN_INFINITY = re.compile(
    r"(?:^|[(\[,;=<>|{]|\\(?:in|to|le|leq|lt|ge|geq|gt|cup|cap|setminus))[+-]?\\infty(?![\w({^*/!+-]|\\d?frac)"
)


def may_be_equal(answer: str, gold: str) -> bool:
    """Return whether the notation of two answers allows that they are equal. answer, gold: LaTeX without a box."""
    if _names_another_case(answer) and not _names_another_case(gold):
        return False
    if bool(_HEXADECIMAL.search(answer)) != bool(_HEXADECIMAL.search(gold)):
        return False
    answer, gold = _plain(answer), _plain(gold)
    last = answer.rsplit("=", 1)[-1]
    if _bases(gold) not in (_bases(answer), _bases(last)):  # 52_8=42_{10} may say 42
        return False
    if (_is_set(answer) and _is_tuple(gold)) or (_is_tuple(answer) and _is_set(gold)):
        return False
    elements = gold.split(",")
    if len(set(elements)) < len(elements) and len(answer.split(",")) != len(elements):  # a double root: 5,5
        return False
    if _computes_with_infinity(answer) and not _computes_with_infinity(gold):
        return False
    return not _INFINITE.fullmatch(gold) or bool(_INFINITE.fullmatch(_TEXT.sub("", last)))


def _plain(text: str) -> str:
    """Return the text without spacing, with bases as subscripts, and with * for each operator that is a command."""
    text = _WORDED_BASE.sub(lambda base: f"_{{{base[1] or base[2]}}}", text)
    text = _OPERATOR.sub("*", _SPACING.sub("", text)).rstrip(".")
    return _BRACED_INFINITY.sub(r"\1", text)


def _names_another_case(text: str) -> bool:
    r"""Return whether words offer a choice that is no formula: 53 \text{ or none}."""
    choices = [set(re.findall("[a-z]+", inside.lower())) for inside in _TEXT.findall(text)]
    return any("or" in words and words - {"or", "and"} for words in choices)


def _computes_with_infinity(text: str) -> bool:
    r"""Return whether an infinity is part of a sum, product or power: 2\infty, \infty+1."""
    return text.count("\\infty") > len(_PLAIN_INFINITY.findall(text))


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
