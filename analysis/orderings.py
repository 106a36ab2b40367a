"""Orderings: the claims of the papers' figures that our runs should confirm, and the verdict on each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Ordering:
    """A claim that our runs should confirm: one that the paper's figure makes, or one about identical training.

    met: None where the runs cannot tell. evidence: the numbers behind it.
    """

    claim: str
    met: bool | None
    evidence: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.claim} ({self.evidence})"

    @property
    def verdict(self) -> str:
        """`met` in words."""
        return {True: "met", False: "NOT MET", None: "cannot tell"}[self.met]
