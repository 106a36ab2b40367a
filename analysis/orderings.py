"""Orderings are claims of the papers such as "A is faster than B". Each gets a verdict from our runs, by order and by
size, where the paper gives a number."""

from collections.abc import Sequence
from dataclasses import dataclass

CLOSE = 1.5  # a size is met if ours and the paper's differ by at most this factor
HEADER = ("claim", "paper", "ours", "ours / paper", "verdict", "evidence from our runs")
MET, NOT_MET, UNDECIDED, NO_SIZE = "order and size met", "NOT MET", "cannot tell", "order met"


@dataclass(frozen=True)
class Size:
    """The paper's value of a claimed quantity and ours, in `unit`; None where one is not known."""

    paper: float | None
    ours: float | None
    unit: str

    @property
    def ratio(self) -> float | None:
        """Our value divided by the paper's; None if one of them is not known."""
        return self.ours / self.paper if self.ours is not None and self.paper else None


@dataclass(frozen=True)
class Ordering:
    """A claim that our runs should confirm: one that a paper's figure makes, or the claim that arms train identically.

    met: whether our runs confirm the claim; None if they cannot decide. evidence: the numbers behind the verdict. size:
    None if the paper gives no number.
    """

    claim: str
    met: bool | None
    evidence: str
    size: Size | None = None

    def __str__(self) -> str:
        numbers = f"paper {self.cells[1]}, ours {self.cells[2]}; " if self.ratio is not None else ""
        return f"{self.verdict}: {self.claim} ({numbers}{self.evidence})"

    @property
    def ratio(self) -> float | None:
        """Our value divided by the paper's; None if one of them is not known."""
        return self.size.ratio if self.size else None

    @property
    def size_met(self) -> bool | None:
        """Whether the order is met and our value is within a factor of CLOSE of the paper's; None without values."""
        if self.ratio is None or self.met is None:
            return None
        return self.met and 1 / CLOSE <= self.ratio <= CLOSE

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        if not self.met:
            return UNDECIDED if self.met is None else NOT_MET
        if self.ratio is None:
            return NO_SIZE
        return MET if self.size_met else f"order met, size {self.ratio:.2g} times the paper's"

    @property
    def cells(self) -> list[str]:
        """The cells of the claim's row, for the columns of HEADER."""
        size = self.size or Size(None, None, "")
        shown = ["" if value is None else f"{value:.3g}{size.unit}" for value in (size.paper, size.ours)]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return [self.claim, *shown, ratio, self.verdict, self.evidence]


def summary(orderings: Sequence[Ordering]) -> list[str]:
    """Return the lines of the box that opens a report: of how many claims the order and, where the paper gives numbers,
    the size are met."""
    sized = [each for each in orderings if each.size_met is not None]
    met = sum(each.met is True for each in orderings)
    undecided = sum(each.met is None for each in orderings)
    order = f"Order: {met} of {len(orderings)} claims are met"
    lines = [order + (f", and {undecided} cannot be told from these runs." if undecided else ".")]
    if sized:
        lines.append(
            f"Size: of the {len(sized)} claims for which the paper gives a number, "
            f"{sum(bool(each.size_met) for each in sized)} are met within a factor of {CLOSE:g}."
        )
    return lines
