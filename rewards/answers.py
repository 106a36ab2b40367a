r"""Find where a response gives its answer, in boxes. Each character is read a fixed number of times.

A response that was cut while it thought has no answer there: a box behind a <think> without </think> does not count.
The opening tag may be missing, because some chat templates write it into the prompt.

The trainer's process reads the responses, so a response that is written to be slow would hold up a training step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# A longer response has no answer. 16,384 tokens have some 60,000 characters, and at most this many if none of them is
# longer than 64.
MAX_CHARACTERS = 1 << 20
_BRACES = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
THINK, THOUGHT = "<think>", "</think>"


def without_open_thought(completion: str) -> str:
    """Return the text before the first <think> that no </think> follows; all of it if there is none."""
    begin = completion.find(THINK, completion.rfind(THOUGHT) + 1)
    return completion if begin < 0 else completion[:begin]


def boxes(completion: str) -> Iterator[tuple[int, int, int]]:
    r"""Yield each complete \boxed{...} in the order in which they end: where the box and its text begin, and where the
    box ends. Then yield each box that does not end, with 0 in place of its end. A \boxed that ends the text is one,
    too: the text was cut there. Yields nothing for a response of more than MAX_CHARACTERS."""
    if len(completion) > MAX_CHARACTERS:
        return
    opened: list[tuple[int, int, bool]] = []  # of each open brace: begin, begin of its text, whether it opens a box
    for token in _BRACES.finditer(completion):
        if token[0] == "}" and opened:
            begin, text, is_box = opened.pop()
            if is_box:
                yield begin, text, token.end()
        elif token[0].endswith("{") and token[0] != "\\{":
            opened.append((token.start(), token.end(), token[0] != "{"))
    for begin, text, is_box in opened:
        if is_box:
            yield begin, text, 0
    if (begun := completion.rstrip()).endswith("\\boxed"):
        yield len(begun) - len("\\boxed"), len(begun), 0
