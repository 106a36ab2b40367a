"""Reward for maths: 1.0 if math-verify finds the boxed answer equal to the gold answer, else 0.0.

math-verify limits its own time by a signal. A long computation inside C code does not notice that signal, and nothing
keeps math-verify from filling the memory. So `MathsReward` asks worker processes, which have a memory limit and can be
killed. `accuracy_reward` computes the same reward in this process, for a policy that never writes such answers.
"""

from __future__ import annotations

import json
import os
import re
import resource
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from das.process import die_with_parent
from rewards.workers import Workers, command

# Seconds for each of the three calls of math-verify (parse the gold answer, parse the response, compare them), which
# enforces them through SIGALRM. Parsing an ordinary answer takes about a millisecond.
_TIMEOUT_S = 2
_MEMORY_BYTES = 2 << 30  # address space of a worker; an idle worker uses 0.06 GiB


@lru_cache(maxsize=1)
def _extraction() -> list[Any]:
    from math_verify import LatexExtractionConfig

    # Only a boxed answer counts. Otherwise the last bare number of an unfinished text would be read as its answer.
    return [LatexExtractionConfig(boxed_match_priority=0)]


@lru_cache(maxsize=65536)
def _gold(answer: str) -> tuple[Any, ...]:
    """Parse a gold answer, once for all responses of a problem. Raises ValueError if math-verify cannot."""
    from math_verify import parse

    parsed = parse(f"\\boxed{{{answer}}}", extraction_config=_extraction(), parsing_timeout=_TIMEOUT_S)
    if not parsed:
        raise ValueError(f"math-verify cannot parse the gold answer {answer!r}")
    return tuple(parsed)


def readable(answer: str) -> bool:
    """Whether math-verify can parse a gold answer. Call it from the main thread, like accuracy_reward."""
    try:
        return bool(_gold(answer))
    except ValueError:
        return False


def _has_box(completion: str) -> bool:
    """Whether the text has a box at all.

    Skipping texts without a box changes no reward, and saves the parser's search through long unfinished responses.
    """
    return "\\boxed" in completion


_TOKENS = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
_AND = re.compile(r"[\s$]*(,|(,\s*)?(and|or|\\text\{\s*(and|or)\s*\}))[\s$]*")


def _boxed(completion: str) -> str:
    """The last complete box, together with the boxes before it that are joined to it by only a comma, "and" or "or".

    math-verify by itself reads all boxes of a text as one set, and any formula if there is no complete box. Then an
    intermediate result in a box would make a right answer wrong, and a formula in an unfinished text could make it
    right.
    """
    opened: list[tuple[int, bool]] = []  # position of each open brace, and whether it opens a box
    boxes: list[tuple[int, int]] = []  # begin and end of each box that is inside no other box
    for token in _TOKENS.finditer(completion):
        if token[0] == "}" and opened:
            begin, is_box = opened.pop()
            while is_box and boxes and boxes[-1][0] > begin:
                boxes.pop()
            if is_box:
                boxes.append((begin, token.end()))
        elif token[0].endswith("{") and token[0] != "\\{":
            opened.append((token.start(), token[0] != "{"))
    if not boxes:
        return ""
    first = len(boxes) - 1
    while first and _AND.fullmatch(completion, boxes[first - 1][1], boxes[first][0]):
        first -= 1
    return completion[boxes[first][0] : boxes[-1][1]].replace("\n", " ")


def _is_right(completion: str, answer: str) -> bool:
    from math_verify import parse, verify

    if not _has_box(completion):
        return False
    parsed = parse(_boxed(completion), _extraction(), extraction_mode="first_match", parsing_timeout=_TIMEOUT_S)
    return bool(verify(list(_gold(answer)), parsed, timeout_seconds=_TIMEOUT_S))


def accuracy_reward(completions: list[str], answers: list[str]) -> list[float]:
    """Return 1.0 or 0.0 for each completion, against the gold answer at the same index.

    A completion that cannot be parsed scores 0.0. Raises ValueError for a gold answer that cannot be parsed, which is
    an error in the data. Call this from the main thread: the time limits of math-verify use signals.
    """
    return [float(_is_right(completion, answer)) for completion, answer in zip(completions, answers, strict=True)]


class MathsReward:
    """accuracy_reward in worker processes. hung: number of responses so far that hung or killed their worker."""

    def __init__(self, parallel: int, timeout_s: float):
        """timeout_s: seconds for one response. Then its worker is killed and it scores 0.0. Raises WorkerError."""
        self._workers = Workers(command("maths"), parallel, timeout_s)
        self.hung = 0

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """As accuracy_reward. A response that hangs or kills its worker scores 0.0."""
        pairs = list(zip(completions, answers, strict=True))
        with_box = [index for index, (completion, _) in enumerate(pairs) if _has_box(completion)]
        rewards = [0.0] * len(pairs)
        for index, reply in zip(with_box, self._workers.ask([pairs[index] for index in with_box]), strict=True):
            if reply is None:
                self.hung += 1
            elif "error" in reply:
                raise ValueError(reply["error"])
            else:
                rewards[index] = reply["reward"]
        return rewards

    def take_counts(self) -> dict[str, int]:
        """What went wrong since the last call: see rewards/workers.py."""
        return self._workers.counts.take()

    def close(self) -> None:
        """Kill the workers."""
        self._workers.close()


def main() -> None:
    """Body of a worker (rewards/workers.py)."""
    die_with_parent()  # the end of standard input would be noticed only between two answers
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what sympy prints must not be read as an answer
    accuracy_reward(["\\boxed{1}"], ["1"])  # imports everything that answers need
    print(json.dumps({"ready": True}), file=answers)
    for line in questions:
        completion, answer = json.loads(line)
        try:
            reply: dict[str, Any] = {"reward": accuracy_reward([completion], [answer])[0]}
        except ValueError as error:  # the gold answer cannot be parsed
            reply = {"error": str(error)}
        except (MemoryError, RecursionError):
            reply = {"reward": 0.0}
        print(json.dumps(reply), file=answers)
