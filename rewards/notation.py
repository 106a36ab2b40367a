r"""Find differences in notation that math-verify overlooks when it takes different answers for equal.

math-verify drops the base of a numeral (52_8 becomes 52) and the letter that stands for one (53h becomes 53). It reads
the set {0, 1} like the pair (0, 1), the list 5, 5 like 5, and [0, \infty] like [0, \infty). It computes with infinity,
so that twice infinity is infinity. It skips words, so that "53 or none" becomes 53. These checks can make an answer
wrong, but never right.
"""

from __future__ import annotations

import re

_SPACING = re.compile(r"\s|\$|\\[,;:! ]|\\(?:left|right|displaystyle|[bB]igg?[lr]?)(?![a-zA-Z])")
_WORDS = re.compile(r"\\(?:text\w*|mathrm|mbox)\{([^{}]*)\}")
_AND_OR = re.compile(r"\\(?:text\w*|mathrm|mbox)\{\s*(?:and|or)\s*\}", re.IGNORECASE)

# Matches a numeral with a subscript: 52_8, {52}_{8}, 52^1_8, \text{52}_{\text{eight}}, 1A_{16}. Not the 5 of C^5_3.
_NUMERAL = re.compile(
    r"(?:(?<![\w^.])\d[\dA-F.]*|(?<!\^)(?:\\(?:text|mathrm|mathbf))?\{\d[\dA-F.]*\})"
    r"(?:\^(?:\{[^{}]*\}|[^{}])|')?"
    r"_(?:\{(?:\\(?:text|mathrm)\{)?([^{}]*)\}|(.))"
)
_COMMAND = re.compile(r"\\(?!(?:text|mathrm|mathbf|infty)\b)[a-zA-Z]+")
_BASE_IN_WORDS = re.compile(r"base(\d+|[a-z]+)")
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {word: str(number) for number, word in enumerate(_NUMBERS, start=2)}
_BASE_LETTER = re.compile(r"(?<![\w.])\d[\dA-F]*[ho](?![a-zA-Z])")  # 53h, 53o: hexadecimal, octal; "53 h" is a unit

_THOUSANDS = re.compile(r",\\!|\{,\}|(?<=\d),(?=\d{3}(?!\d))")

_FIRST_IS_TUPLE = re.compile(r"\\\{[(\[][^()\[\],]*,")

_BRACKETED_INFINITY = re.compile(r"\{([+-]?\\infty)\}|\(([+-]?\\infty)\)")
_INFINITE = re.compile(r"[+-]?\\infty")
# Matches an infinity with which nothing is computed: an end of an interval, a member of a list, a side of a relation.
_RELATION = r"[=<>|]|\\(?:to|rightarrow|leq?|geq?|lt|gt)(?![a-zA-Z])"
_PLAIN_INFINITY = re.compile(rf"(?:^|(?<=[(\[{{,;])|{_RELATION})(?:[+-]|\\pm)?\\infty(?=$|[)\],;]|\\\}}|{_RELATION})")
_CLOSED_INFINITY = re.compile(r"\\infty\]|\[[+-]?\\infty")

# What is harmless at the end of an answer, and spaces that set thousands apart. No run is tried from inside itself, for
# a long one would take long.
_ENDING = re.compile(r"(?<![.,;:\s{\\])(?<!\\!)(?:[.,;:\s]|\\[,;:! ])++(?=\}|$)")
_THIN = re.compile(r"(?<=\d)(?:\{\\,\}|\\[,! ]|[\u2009\u202f\xa0])(?=\d{3}(?!\d))")


def plain(text: str) -> str:
    r"""Return the text of an answer or of its box without what changes no value but hinders math-verify: punctuation
    and space before the end, as in 5. or \boxed{5\,.}, and thin spaces between thousands."""
    return _ENDING.sub("", _THIN.sub("", text))


def may_be_equal(answer: str, gold: str) -> bool:
    """Return whether the notation of two answers allows that they are equal. answer, gold: LaTeX without a box."""
    if any(found(answer) and not found(gold) for found in (_offers_alternative, _BASE_LETTER.search)):
        return False
    if _repeats(gold) not in (0, _repeats(answer)):
        return False
    answer, gold = (_SPACING.sub("", text).rstrip(".") for text in (answer, gold))
    if _bases(gold) not in (_bases(answer), _bases(answer.rsplit("=", 1)[-1])):  # 52_8=42_{10} may say 42
        return False
    answer, gold = (_WORDS.sub("", text) for text in (answer, gold))
    if (_is_set(answer) and _is_tuple(gold)) or (_is_tuple(answer) and _is_set(gold)):
        return False
    return _infinities_may_be_equal(*(_BRACKETED_INFINITY.sub(r"\1\2", text) for text in (answer, gold)))


def _offers_alternative(text: str) -> bool:
    r"""Return whether words in a text offer another answer, which math-verify skips: 53 \text{ or none}."""
    sayings = [re.findall(r"\w+", words.lower()) for words in _WORDS.findall(text)]
    return any("or" in words and len(words) > 1 for words in sayings)


def _repeats(text: str) -> int:
    """Return how many items of a list stand in it before: 1 for 5,5. An item is compared as text."""
    text = _SPACING.sub("", _AND_OR.sub(",", _THOUSANDS.sub("", text)))
    text = text.removeprefix("\\{").removesuffix("\\}")
    depth, begin, items = 0, 0, []
    for place, letter in enumerate(f"{text},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            items.append(text[begin:place].rsplit("=", 1)[-1])
            begin = place + 1
    return len(items) - len(set(items))


def _bases(text: str) -> set[str]:
    """Return the bases of the numerals in a text. Base ten is left out, because numerals without a base have it."""
    subscripts = {braced or single for braced, single in _NUMERAL.findall(_COMMAND.sub(" ", text))}
    named = {base for words in _WORDS.findall(text) for base in _BASE_IN_WORDS.findall(words)}
    return {_BASES.get(base, base) for base in (name.strip("()") for name in subscripts | named)} - {"10"}


def _is_set(text: str) -> bool:
    r"""Return whether a text is a set that lists its elements, none of which is a tuple: \{0,1\}, x\in\{0,1\}."""
    text = _value(text)
    listed = text.startswith("\\{") and text.endswith("\\}") and not _FIRST_IS_TUPLE.match(text)
    return listed and not any(word in text for word in (":", "|", "\\mid", "\\cup", "\\cap", "\\setminus"))


def _is_tuple(text: str) -> bool:
    """Return whether a text is a tuple or an interval of numbers: (0,1), [0,1)."""
    text = _value(text)
    inside = text[1:-1]
    return text[:1] in ("(", "[") and text[-1:] in (")", "]") and "," in inside and not re.search(r"[()\[\]]", inside)


def _value(text: str) -> str:
    r"""Return what a text says that something is: behind the last = or \in, if there is one."""
    return re.split(r"=|\\in(?![a-zA-Z])", text)[-1]


def _infinities_may_be_equal(answer: str, gold: str) -> bool:
    r"""Return whether infinity is all of both answers or of neither, and nothing is computed with it in the answer.
    answer, gold: without spaces and words. If the gold answer lacks it, every answer may be equal."""
    if _INFINITE.fullmatch(gold):
        return bool(_INFINITE.fullmatch(answer.rsplit("=", 1)[-1]))
    if "\\infty" not in gold:
        return True
    closed = _CLOSED_INFINITY.search(answer) and not _CLOSED_INFINITY.search(gold)
    return not closed and len(_PLAIN_INFINITY.findall(answer)) == answer.count("\\infty")
