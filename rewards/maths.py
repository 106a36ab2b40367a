"""Reward for maths: 1.0 where math-verify finds the boxed answer equal to the gold answer, else 0.0.

math-verify stops itself by a signal, which a long computation inside C code does not notice, and nothing stops it from
filling the memory. `MathsReward` therefore asks worker processes, which have a memory limit and can be killed;
`accuracy_reward` is the same in this process, for texts of a policy that knows nothing of the kind.
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

# Seconds for each of math-verify's own three calls (gold, response, comparison), enforced through SIGALRM; parsing a
# sane answer takes about a millisecond.
_TIMEOUT_S = 2
_MEMORY_BYTES = 2 << 30  # address space of a worker; idle it has 0.06 GiB


@lru_cache(maxsize=1)
def _extraction() -> list[Any]:
    from math_verify import LatexExtractionConfig

    # Only a boxed answer counts: without it the last bare number of an unfinished text would be taken as its answer.
    return [LatexExtractionConfig(boxed_match_priority=0)]


@lru_cache(maxsize=65536)
def _gold(answer: str) -> tuple[Any, ...]:
    """Parse a gold answer once; every sibling of a problem shares it."""
    from math_verify import parse

    parsed = parse(f"\\boxed{{{answer}}}", extraction_config=_extraction(), parsing_timeout=_TIMEOUT_S)
    if not parsed:
        raise ValueError(f"math-verify cannot parse the gold answer {answer!r}")
    return tuple(parsed)


def readable(answer: str) -> bool:
    """Whether a gold answer can be judged by at all. From the main thread, as accuracy_reward."""
    try:
        return bool(_gold(answer))
    except ValueError:
        return False


def _has_box(completion: str) -> bool:
    """Skipping texts without a box changes no result and saves the parser's search through long truncated responses."""
    return "\\boxed" in completion


_TOKENS = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
_AND = re.compile(r"[\s$]*(,|(,\s*)?(and|or|\\text\{\s*(and|or)\s*\}))[\s$]*")


def _boxed(completion: str) -> str:
    """The last complete box, with those before it that only a comma, "and" or "or" parts from it.

    math-verify by itself takes all boxes of a text for one set, and any formula where there is no complete box: then an
    intermediate result in a box makes a right answer wrong, and a formula of an unfinished text makes it right.
    """
    opened: list[tuple[int, bool]] = []
    boxes: list[tuple[int, int]] = []  # begin and end of those in no other
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
    found = parse(_boxed(completion), _extraction(), extraction_mode="first_match", parsing_timeout=_TIMEOUT_S)
    return bool(verify(list(_gold(answer)), found, timeout_seconds=_TIMEOUT_S))


def accuracy_reward(completions: list[str], answers: list[str]) -> list[float]:
    """Return 1.0 or 0.0 for each completion against the gold answer at the same index.

    A completion that cannot be parsed scores 0.0; a gold answer that cannot be parsed is an error in the data.
    Call it from the main thread: math-verify's time limits use signals.
    """
    return [float(_is_right(completion, answer)) for completion, answer in zip(completions, answers, strict=True)]


class MathsReward:
    """accuracy_reward in worker processes. hung: how many responses cost their worker its life so far."""

    def __init__(self, parallel: int, timeout_s: float):
        """timeout_s: for one response, after which its worker is killed and it scores 0.0. Raises WorkerError."""
        self._workers = Workers(command("maths"), parallel, timeout_s)
        self.hung = 0

    def __call__(self, completions: Sequence[str], answers: Sequence[str]) -> list[float]:
        """As accuracy_reward, and 0.0 for a response that hangs or kills its worker."""
        pairs = list(zip(completions, answers, strict=True))
        asked = [index for index, (completion, _) in enumerate(pairs) if _has_box(completion)]
        rewards = [0.0] * len(pairs)
        for index, found in zip(asked, self._workers.ask([pairs[index] for index in asked]), strict=True):
            if found is None:
                self.hung += 1
            elif "error" in found:
                raise ValueError(found["error"])
            else:
                rewards[index] = found["reward"]
        return rewards

    def take_counts(self) -> dict[str, int]:
        """What went wrong since the last call: see rewards/workers.py."""
        return self._workers.counts.take()

    def close(self) -> None:
        """End the workers."""
        self._workers.close()


def main() -> None:
    """Body of a worker: see rewards/workers.py."""
    die_with_parent()  # the end of its input is noticed between two answers only
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what sympy prints must not be taken for an answer
    accuracy_reward(["\\boxed{1}"], ["1"])  # imports what it needs
    print(json.dumps({"ready": True}), file=answers)
    for line in questions:
        completion, answer = json.loads(line)
        try:
            reply: dict[str, Any] = {"reward": accuracy_reward([completion], [answer])[0]}
        except ValueError as error:  # the gold answer's
            reply = {"error": str(error)}
        except (MemoryError, RecursionError):
            reply = {"reward": 0.0}
        print(json.dumps(reply), file=answers)
