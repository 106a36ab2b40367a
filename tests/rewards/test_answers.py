"""The answer of a response is found, and no response is slow to read for its length."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.answers import MAX_CHARACTERS, boxes, final_answer
from rewards.code import code_of


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so \\boxed{12}", "12"),
        ("<answer> 12 </answer>", "12"),
        ("<answer>1</answer> no: \\boxed{2}", "2"),
        ("\\boxed{1} no: <answer>2</answer>", "2"),
        ("<answer>\\boxed{2} m</answer>", "\\boxed{2} m"),
        ("\\boxed{<answer>2</answer> m}", "<answer>2</answer> m"),
        ("<answer>\n1 2\n3 4\n</answer>.", "1 2\n3 4"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1\\}}", "\\{1\\}"),
        ("\\boxed{3} and \\boxed{4", "3"),
        ("<answer>5</answer><answer>6", "5"),
        ("\\boxed{}", ""),
        ("<think> \\boxed{12}", None),
        ("<think> \\boxed{13} \\end{think} <answer>12</answer>", "12"),
        ("<think> 12 </think> \\boxed{13}", "13"),
        ("\\boxed{12} </think> \\boxed{13}", "13"),
        ("the answer is 12", None),
        ("", None),
    ],
)
def test_the_last_complete_answer_counts(completion: str, answer: str | None) -> None:
    assert final_answer(completion) == answer


@given(st.text(alphabet="\\boxed{}<answr/> 1", max_size=60))
def test_any_text_has_an_answer_or_none(completion: str) -> None:
    answer = final_answer(completion)
    assert answer is None or answer in completion


# Functions that the trainer's process calls with a response, and responses of n tokens or more that were slow to read.
READERS: dict[str, Callable[[str], object]] = {
    "code_of": code_of,
    "final_answer": final_answer,
    "boxes": lambda completion: list(boxes(completion)),
}
ATTACKS: dict[str, Callable[[int], str]] = {
    "answers": lambda n: "<answer>" * n,
    "answers that close": lambda n: "<answer>" * n + "</answer>" * n,
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


def cpu_s(read: Callable[[str], object], completion: str) -> float:
    """CPU seconds of one call: the least of three, and a millisecond if it is less."""
    best = 1.0e9
    for _ in range(3):
        began = time.process_time()
        read(completion)
        best = min(best, time.process_time() - began)
    return max(best, 1e-3)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("reader", READERS)
def test_eight_times_as_many_tokens_take_no_64_times_as_long(reader: str, attack: str) -> None:
    """Linear scanners take 8 times as long, quadratic ones 64 times."""
    short, long = (ATTACKS[attack](n) for n in (2048, 16384))
    assert cpu_s(READERS[reader], long) < 32 * cpu_s(READERS[reader], short)


def test_a_response_without_end_has_no_answer() -> None:
    for answer in ("\\boxed{1}", "<answer>1</answer>"):
        assert final_answer("a" * (MAX_CHARACTERS - len(answer)) + answer) == "1"
        assert final_answer("a" * MAX_CHARACTERS + answer) is None
    code = "```\nf = 1\n```"
    assert code_of("\n" * (MAX_CHARACTERS - len(code)) + code) == "f = 1\n"
    assert code_of("\n" * MAX_CHARACTERS + code) == ""
    assert not list(boxes("a" * MAX_CHARACTERS + "\\boxed{1}"))
