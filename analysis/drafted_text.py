"""Write responses as one self-contained HTML page that shows which of their tokens were drafted."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.page import document
from das.files import write_text

# Orange on white, and underlined: it can be told from plain text without seeing colours.
CSS = (
    "pre{white-space:pre-wrap;overflow-wrap:anywhere}"
    "mark{background:#f7d9a8;color:#000;border-bottom:2px solid #b35900}h2{margin-top:2.5rem}h3{margin-bottom:.2rem}"
    "p.facts{margin:0;color:#555}"
)
LEGEND = (
    "<p><mark>Marked and underlined</mark>: drafted tokens that the policy accepted. They came without passes of their "
    "own. Plain: the token that each pass of the policy sampled itself. The text is the same without drafts.</p>"
)


@dataclass(frozen=True)
class DraftedText:
    """A response as text. pieces: what each token adds to it. emitted: the tokens that each pass emitted."""

    title: str
    pieces: Sequence[str]
    emitted: Sequence[int]
    num_drafted: int

    @property
    def accepted(self) -> list[bool]:
        """For each token, whether it was drafted: in each pass, all tokens but the last one."""
        drafted = [place < count - 1 for count in self.emitted for place in range(count)]
        return drafted[: len(self.pieces)]

    def html(self) -> str:
        """Returns the response with its title and counts."""
        accepted = self.accepted
        text = "".join(
            f"<mark>{html.escape(piece)}</mark>" if drafted else html.escape(piece)
            for piece, drafted in zip(self.pieces, accepted, strict=True)
        )
        tokens, passes, hits = len(self.pieces), len(self.emitted), sum(accepted)
        facts = f"{tokens} tokens in {passes} passes: {tokens / passes:.2f} a pass"
        if self.num_drafted:
            facts += f", {hits} of {self.num_drafted} drafted tokens accepted ({hits / self.num_drafted:.0%})"
        text = text.replace("</mark><mark>", "")  # neighbours are one run
        return f"<h3>{html.escape(self.title)}</h3><p class='facts'>{facts}</p><pre>{text}</pre>"


def write(path: Path, sections: Sequence[tuple[str, Sequence[DraftedText]]]) -> None:
    """Write the page. sections: a heading, and the responses below it."""
    body = [LEGEND]
    for heading, texts in sections:
        body += [f"<h2>{html.escape(heading)}</h2>", *(text.html() for text in texts)]
    write_text(path, document("Which tokens were drafted", body, CSS))
