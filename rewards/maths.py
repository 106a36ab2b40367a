"""Reward for maths: 1.0 where math-verify finds the boxed answer equal to the gold answer, else 0.0."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

# Only a boxed answer counts: without it the last bare number of an unfinished text would be taken as its answer.
_EXTRACTION = [LatexExtractionConfig(boxed_match_priority=0)]
# Seconds, enforced by math-verify through SIGALRM; parsing a sane answer takes about a millisecond.
_TIMEOUT_S = 2


@lru_cache(maxsize=65536)
def _gold(answer: str) -> tuple[Any, ...]:
    """Parse a gold answer once; every sibling of a problem shares it."""
    parsed = parse(f"\\boxed{{{answer}}}", extraction_config=_EXTRACTION, parsing_timeout=_TIMEOUT_S)
    if not parsed:
        raise ValueError(f"math-verify cannot parse the gold answer {answer!r}")
    return tuple(parsed)


def _is_right(completion: str, answer: str) -> bool:
    # Skipping texts without a box changes no result and saves the parser's search through long truncated responses.
    if "\\boxed" not in completion:
        return False
    found = parse(completion, extraction_config=_EXTRACTION, extraction_mode="first_match", parsing_timeout=_TIMEOUT_S)
    return bool(verify(list(_gold(answer)), found, timeout_seconds=_TIMEOUT_S))


def accuracy_reward(completions: list[str], answers: list[str]) -> list[float]:
    """Return 1.0 or 0.0 for each completion against the gold answer at the same index.

    A completion that cannot be parsed scores 0.0; a gold answer that cannot be parsed is an error in the data.
    Call it from the main thread: math-verify's time limits use signals.
    """
    return [float(_is_right(completion, answer)) for completion, answer in zip(completions, answers, strict=True)]
