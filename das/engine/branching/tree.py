"""The nodes of branching drafts, and their places in the rows and in the KV cache of a pass.

A draft is a list of nodes (drafted tokens). `parents[i]` is the node before node i, or -1 if node i follows the root,
which is the request's last token. A parent precedes its children. A request's row 0 is the root, row i + 1 is node i.

A *run* is a stretch of nodes, each of which follows the one before it. Attention sees every run as a request of its
own. The first run is the trunk: its keys and values go where the request's next tokens will lie. Every other run is a
branch. A branch has blocks of its own (*scratch blocks*), beginning with the block in which it leaves the trunk:

- before the pass, the request's partial block is copied into the first of them;
- in each layer, the keys and values of the root and of nodes that the branch follows are written there too;
- after the pass, the scratch blocks of accepted nodes are copied over the request's own blocks.

So a branch repeats no row: the rows of a pass are the nodes of its drafts, and one root for each request.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


def in_runs(tokens: Sequence[int], parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Reorder a draft so that each node is followed by its first child. Returns its tokens and parents.

    If nodes come in falling order of probability, the first run (the trunk) is the likeliest path, and unlikely
    branches are last.
    """
    first_child = {parent: node for node, parent in reversed(list(enumerate(parents)))}
    place = {-1: -1}  # the place of each node in the new order
    for head in range(len(parents)):
        node: int | None = head
        while node is not None and node not in place:
            place[node] = len(place) - 1
            node = first_child.get(node)
    order = list(place)[1:]
    return [tokens[node] for node in order], [place[parents[node]] for node in order]


def depths(parents: Sequence[int]) -> list[int]:
    """Returns, for each node, the number of nodes on the path to it, itself included."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 1)
    return found


def is_chain(parents: Sequence[int]) -> bool:
    """Returns whether a draft is a chain: each node follows the one before it, so nothing branches."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def last_accepted(tokens: Sequence[int], parents: Sequence[int], emitted: Sequence[int]) -> int:
    """Follow the emitted tokens through a draft, from the root on. Returns the last node that they reach; -1 if they
    match no node."""
    node = -1
    for token in emitted:
        children = (i for i in range(node + 1, len(parents)) if parents[i] == node and tokens[i] == token)
        child = next(children, None)
        if child is None:
            break
        node = child
    return node


@dataclass(slots=True)
class Branch:
    """A branch: a run (stretch of drafted tokens) that leaves the draft's first run, the trunk."""

    start: int  # its first node
    stop: int  # the node after its last one
    first_block: int  # the first of the request's blocks that it replaces by a scratch block
    num_blocks: int  # how many of the request's blocks it replaces
    blocks: list[int] = field(default_factory=list)  # the scratch blocks


def branches(parents: Sequence[int], root: int, block_size: int) -> list[Branch]:
    """Returns the branches of a draft. root: the position of the draft's root in the request's text."""
    depth = depths(parents)
    starts = [node for node, parent in enumerate(parents) if parent != node - 1]  # of branches; the trunk starts at 0
    found = []
    for start, stop in pairwise([*starts, len(parents)]):
        on_trunk = parents[start]
        while on_trunk >= starts[0]:
            on_trunk = parents[on_trunk]
        first_block = (root + on_trunk + 2) // block_size  # of the node after the last one on the trunk
        last_block = (root + depth[stop - 1]) // block_size
        found.append(Branch(start, stop, first_block, last_block - first_block + 1))
    return found


def num_fitting(parents: Sequence[int], root: int, block_size: int, free: int) -> tuple[int, int]:
    """Find how many of a draft's nodes, counted from the first one, fit into `free` scratch blocks.

    Returns this number of nodes, and the number of scratch blocks that they take.
    """
    used = 0
    for branch in branches(parents, root, block_size):
        if used + branch.num_blocks > free:
            return branch.start, used
        used += branch.num_blocks
    return len(parents), used


@dataclass(slots=True)
class Tree:
    """A branching draft that a pass verifies."""

    request: int  # the request's row in the batch
    tokens: list[int]
    parents: list[int]
    root: int  # position of the root in the request's text
    branches: list[Branch]


@dataclass(slots=True)
class BranchPass:
    """The rows of a pass with branching drafts. The lists below a comment belong together, entry by entry."""

    block_size: int
    scratch: Iterator[int]  # blocks that no request owns
    trees: list[Tree] = field(default_factory=list)
    # Runs, in the order of their rows: request, first row, tokens that the last row attends to.
    owners: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    # Scratch blocks of runs: index of the run, which of the request's blocks it replaces, block.
    patched_runs: list[int] = field(default_factory=list)
    patched_columns: list[int] = field(default_factory=list)
    patched_blocks: list[int] = field(default_factory=list)
    # Rows of branches: row, position in the request's text, slot of its key and value.
    rows: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    # Rows that branches follow: row, further slot of its key and value.
    shared_rows: list[int] = field(default_factory=list)
    shared_slots: list[int] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # blocks to copy before the pass: (from, to)

    def add_run(self, request: int, first_row: int, length: int) -> None:
        """Add a run (rows that follow each other) to the pass: all rows of a request whose draft does not branch, or
        one run of a draft that does.

        first_row: the run's first row. length: how many tokens of the request the run's last row attends to.
        """
        self.owners.append(request)
        self.starts.append(first_row)
        self.lengths.append(length)

    def add_tree(self, request: int, first_row: int, tree: Tree, blocks: Sequence[int]) -> None:
        """Add a request with a branching draft to the pass. blocks: the request's KV blocks."""
        self.trees.append(tree)
        depth = [*depths(tree.parents), 0]  # the root's depth comes last, so that its index is -1
        self.add_run(request, first_row, tree.root + 1 + tree.branches[0].start)
        for branch in tree.branches:
            branch.blocks = [next(self.scratch) for _ in range(branch.num_blocks)]
            replaced = range(branch.first_block, branch.first_block + branch.num_blocks)
            self.patched_runs += [len(self.owners)] * branch.num_blocks
            self.patched_columns += replaced
            self.patched_blocks += branch.blocks
            self.add_run(request, first_row + 1 + branch.start, tree.root + 1 + depth[branch.stop - 1])
            begin = branch.first_block * self.block_size
            if begin < tree.root:
                self.copies.append((blocks[branch.first_block], branch.blocks[0]))
            for node in range(branch.start, branch.stop):
                position = tree.root + depth[node]
                self.rows.append(first_row + 1 + node)
                self.positions.append(position)
                self.slots.append(self._slot(branch, position))
            node = branch.start
            while node >= 0 and tree.root + depth[node] > begin:
                node = tree.parents[node]
                self.shared_rows.append(first_row + 1 + node)
                self.shared_slots.append(self._slot(branch, tree.root + depth[node]))

    def _slot(self, branch: Branch, position: int) -> int:
        index, offset = divmod(position, self.block_size)
        return branch.blocks[index - branch.first_block] * self.block_size + offset

    def kept(self, tree: Tree, emitted: Sequence[int], blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Returns the scratch blocks to keep after a pass has emitted the tokens `emitted`, as pairs (scratch block,
        the request's own block to copy it over). blocks: the request's own KV blocks."""
        node = last_accepted(tree.tokens, tree.parents, emitted)
        for branch in tree.branches:
            if branch.start <= node < branch.stop:
                last = (tree.root + depths(tree.parents)[node]) // self.block_size
                columns = range(branch.first_block, last + 1)
                return [(branch.blocks[column - branch.first_block], blocks[column]) for column in columns]
        return []
