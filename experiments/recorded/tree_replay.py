"""Count drafted and accepted tokens in a replay with drafts that branch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from das.drafter import Draft, TreeDraft
from experiments.recorded.drafter_replay import Tally


def rows_of_prefixes(parents: Sequence[int]) -> list[int]:
    """Return how many rows verify the first 1, 2, ... nodes of a tree. A row is a query token of the pass.

    The row of the last emitted token does not count. A first child continues its parent's path and takes one row. Any
    other child starts a branch, which repeats the rows of the last emitted token and of the path before the child: a
    branch keeps its keys and values elsewhere.
    """
    rows: list[int] = []
    depth = {-1: 0}
    has_child: set[int] = set()
    for node, parent in enumerate(parents):
        depth[node] = depth[parent] + 1
        rows.append((rows[-1] if rows else 0) + (depth[node] + 1 if parent in has_child else 1))
        has_child.add(parent)
    return rows


@dataclass
class TreeTally(Tally):
    """A Tally for drafts that branch. max_rows: the most rows of a draft, which is cut if it needs more; None: no
    limit."""

    max_rows: int | None = None
    num_rows: int = 0

    def summary(self) -> dict[str, Any]:
        passes = sum(passes for _, passes in self.by_epoch.values())
        return {**super().summary(), "rows_per_pass": self.num_rows / passes}

    def count(self, epoch: int, draft: Draft | TreeDraft, coming: Sequence[int]) -> int:
        if isinstance(draft, TreeDraft):
            rows = rows_of_prefixes(draft.parents)
            n = len(rows) if self.max_rows is None else sum(r <= self.max_rows for r in rows)
            draft = TreeDraft(draft.tokens[:n], draft.parents[:n], draft.probs[:n], draft.joint[:n])
            self.num_rows += rows[n - 1] if n else 0
        return super().count(epoch, draft, coming)

    def judge(self, draft: Draft | TreeDraft, coming: Sequence[int]) -> int:
        """Note in `bins` whether each node whose parent was accepted is accepted too. Returns how many nodes are
        accepted. coming: the recorded tokens that follow."""
        parents = draft.parents if isinstance(draft, TreeDraft) else range(-1, len(draft.tokens) - 1)
        accepted = {-1: 0}  # accepted node -> number of tokens of its path
        for node, (token, parent, prob) in enumerate(zip(draft.tokens, parents, draft.probs, strict=True)):
            depth = accepted.get(parent)
            if depth is None or depth == len(coming):
                continue
            is_accepted = token == coming[depth]
            if is_accepted:
                accepted[node] = depth + 1
            self.bins[min(19, int(prob * 20))] += (1, prob, is_accepted)
        return len(accepted) - 1
