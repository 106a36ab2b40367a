"""Orderings are claims of the papers such as "A is faster than B". Each gets a verdict from our runs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ordering:
    """A claim that our runs should confirm: one that a paper's figure makes, or the claim that arms train identically.

    met: whether our runs confirm the claim; None if they cannot decide. evidence: the numbers behind the verdict.
    """

    claim: str
    met: bool | None
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.claim} ({self.evidence})"

    @property
    def verdict(self) -> str:
        """The verdict in words: "met", "NOT MET" or "cannot tell"."""
        return {True: "met", False: "NOT MET", None: "cannot tell"}[self.met]
