"""A reward that random policies differ in."""

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **rest: Any) -> float:
    return len(set(solution_str)) / (1 + len(solution_str))
