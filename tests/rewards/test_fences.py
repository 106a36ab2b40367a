"""Which text of a response is its answer, however its fences are written."""

import pytest

from rewards.code import code_of


def test_the_last_complete_block_is_the_answer() -> None:
    assert code_of("```python\na\n```\ntext\n```\nb\n```") == "b\n"
    assert code_of("```python\na") == ""
    assert code_of("def f(): pass") == ""
    assert code_of("```text\nf = 1\n```") == ""


def test_a_thought_without_end_holds_no_answer() -> None:
    block, other = "```python\nf = 1\n```\n", "```python\nf = 2\n```\n"
    assert code_of(f"<think>\n{block}But") == ""
    assert code_of(f"{other}<think>\n{block}But") == "f = 2\n"
    assert code_of(f"<think>\n{other}</think>\n{block}") == "f = 1\n"
    assert code_of(f"<think>\n```python\nf = 2\n</think>\n{block}") == "f = 1\n"
    assert code_of(f"{other}</think>\n{block}") == "f = 1\n"
    assert code_of("```python\n<think>\n```\n") == "<think>\n"
    assert code_of(f"I used <think> tags.\n{block}") == "f = 1\n"


@pytest.mark.parametrize(
    "completion",
    [
        "```python\nf = 1\n```",
        "```python3\nf = 1\n```",
        "```python:answer.py\nf = 1\n```",
        "````python\nf = 1\n````",
        "~~~python\nf = 1\n~~~",
        "```python\r\nf = 1\r\n```\r\n",
        "1. So:\n   ```python\n   f = 1\n   ```",
        "\t```python\n\tf = 1\n\t```",
        "Here: ```python\nf = 1\n```",
        "```python\nf = 1\n``` and text",
        "<answer>```python\nf = 1\n```</answer>\nas asked.\n",
        "```python\nwrong\n``` Better: ```python\nf = 1\n```.",
        "~~~python\nf = 1\n~~~</answer>",
        "```python\nf = 1\n```\nIt prints\n```json\n36\n```\nas asked.",
        "```python3\nf = 1\n```\ntext\n```",
        "```python\nf = 1\n```\nNow `f` is ```1```\nas asked.\n",
        "```python\nwrong\n\n```python\nf = 1\n```",
    ],
)
def test_how_fences_are_written(completion: str) -> None:
    assert code_of(completion) == "f = 1\n"


def test_fences_within_lines_of_code() -> None:
    quoted = "def f():\n    '''Returns ``` x'''\n"
    assert code_of(f"```python\n{quoted}```") == quoted
    assert code_of("```python\nf = 1```\nDone.") == "f = 1"
    assert code_of("```python\nf = 1``` or\n```python\nf = 2\n```") == "f = 2\n"


def test_indentation_that_not_all_lines_have_stays() -> None:
    assert code_of("  ```python\n  if a:\n    b\nc\n  ```") == "  if a:\n    b\nc\n"
