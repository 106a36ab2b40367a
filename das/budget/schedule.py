"""The order in which requests start if there are more requests than slots: the longest predicted responses come first.

If a long response started last, the rollout would end late. Siblings (of one problem) start together, because they
draft from each other while they decode. The order changes no token, because noise is keyed by request and position.
"""

from collections.abc import Sequence

from das.budget.remaining import MAX_RESPONSE, RemainingLength


class LongestFirst:
    """Learns each problem's response lengths over rollouts, and orders requests by them."""

    def __init__(self) -> None:
        self.lengths = RemainingLength(MAX_RESPONSE)

    def order(self, problems: Sequence[str]) -> list[int]:
        """Returns the indices of the requests in starting order, one problem after the other."""
        expected = {problem: self.lengths.mean_length(problem) for problem in problems}
        first_index = {problem: i for i, problem in reversed(list(enumerate(problems)))}
        return sorted(range(len(problems)), key=lambda i: (-expected[problems[i]], first_index[problems[i]], i))

    def observe(self, problems: Sequence[str], lengths: Sequence[int]) -> None:
        """Learn from a finished rollout. lengths: the response lengths, in tokens."""
        for problem, length in zip(problems, lengths, strict=True):
            self.lengths.observe(problem, length)
