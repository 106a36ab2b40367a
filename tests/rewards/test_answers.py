"""No response is slow to read for its length. Which box counts: test_maths.py; which block: test_fences.py."""

from collections.abc import Callable

from rewards.answers import MAX_CHARACTERS, boxes
from rewards.code import code_of

# Responses of n tokens or more that were slow to read.
ATTACKS: dict[str, Callable[[int], str]] = {
    "nested boxes": lambda n: "\\boxed{" * n + "}" * n,
    "open boxes": lambda n: "\\boxed{" * n,
    "thoughts": lambda n: "<think>" * n,
    "thoughts that end": lambda n: "<think></think>\n" * n,
    "backslashes": lambda n: "\\" * n + "boxed{",
    "tildes before a backtick": lambda n: "~~~ " * n + "`",
    "a language before a backtick": lambda n: "~~~" + "a" * 4 * n + "`",
    "spaces before a backtick": lambda n: "~~~" + " " * n + "`",
    "fences in a line": lambda n: "``` " * n,
    "fences of both kinds": lambda n: "~`" * n,
    "a long fence": lambda n: "`" * 4 * n + "x`",
    "fences": lambda n: "```\n" * n,
    "blocks that do not close": lambda n: "```a\n" * n,
    "blocks in lines": lambda n: "a ~~~b``` c\n" * n,
    "a long block": lambda n: "```python\n" + "a\n" * n,
}


def test_long_responses_are_read() -> None:
    """Of a million characters: a scanner that goes back for each token would not come to an end."""
    for make in ATTACKS.values():
        text = make(900 * MAX_CHARACTERS // len(make(1000)))
        assert MAX_CHARACTERS // 2 < len(text) <= MAX_CHARACTERS
        assert len(list(boxes(text))) < len(text)
        assert len(code_of(text)) < len(text)


def test_a_response_without_end_has_no_answer() -> None:
    for spare, found in ((0, 1), (1, 0)):
        assert len(list(boxes("a" * (MAX_CHARACTERS - len("\\boxed{1}") + spare) + "\\boxed{1}"))) == found
    code = "```\nf = 1\n```"
    assert code_of("\n" * (MAX_CHARACTERS - len(code)) + code) == "f = 1\n"
    assert code_of("\n" * MAX_CHARACTERS + code) == ""
