"""The answer of a response is found, and no response is slow to read for its length."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers import MAX_CHARACTERS, boxes, without_open_thought
from rewards.code import code_of


def last_box(completion: str) -> str | None:
    found = [completion[begin : end - 1] for _, begin, end in boxes(without_open_thought(completion)) if end]
    return found[-1] if found else None


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so \\boxed{12}", "12"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1\\}}", "\\{1\\}"),
        ("\\boxed{3} and \\boxed{4", "3"),
        ("\\boxed{}", ""),
        ("<think> \\boxed{12}", None),
        ("<think> 12 </think> \\boxed{13}", "13"),
        ("\\boxed{12} </think> \\boxed{13}", "13"),
        ("the answer is 12", None),
        ("", None),
    ],
)
def test_the_last_complete_box_counts(completion: str, answer: str | None) -> None:
    assert last_box(completion) == answer


@given(st.text(alphabet="\\boxed{}<thinkr/> 1", max_size=60))
def test_any_text_has_a_box_or_none(completion: str) -> None:
    answer = last_box(completion)
    assert answer is None or answer in completion


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
    assert last_box("a" * (MAX_CHARACTERS - len("\\boxed{1}")) + "\\boxed{1}") == "1"
    assert last_box("a" * MAX_CHARACTERS + "\\boxed{1}") is None
    code = "```\nf = 1\n```"
    assert code_of("\n" * (MAX_CHARACTERS - len(code)) + code) == "f = 1\n"
    assert code_of("\n" * MAX_CHARACTERS + code) == ""
    assert not list(boxes("a" * MAX_CHARACTERS + "\\boxed{1}"))
