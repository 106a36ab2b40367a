"""Where the nodes of a branching draft lie, on a KV cache that holds tokens in place of keys and values."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from das.engine.branching.tree import BranchPass, Tree, branches, depths, in_runs, is_chain, last_accepted, num_fitting

Parents = list[int]


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 14) -> Parents:
    """Parents of a draft's nodes. Some nodes follow the one before them, so that branches get long."""
    parents: Parents = []
    for node in range(draw(st.integers(1, max_nodes))):
        parents.append(draw(st.one_of(st.just(node - 1), st.integers(-1, node - 1))))
    return parents


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the root to `node`, itself included."""
    found: list[int] = []
    while node >= 0:
        found.append(node)
        node = parents[node]
    return found[::-1]


@given(parents=trees())
def test_a_draft_in_runs_is_the_same_tree(parents: Parents) -> None:
    tokens = list(range(100, 100 + len(parents)))
    ordered, moved = in_runs(tokens, parents)
    assert sorted(ordered) == tokens
    assert all(parent < node for node, parent in enumerate(moved))
    for node, token in enumerate(ordered):
        assert [ordered[i] for i in path(moved, node)] == [100 + i for i in path(parents, token - 100)]
    # The first child comes right after its parent, and runs begin in the order of the nodes they begin with.
    for node, token in enumerate(ordered[:-1]):
        children = [child for child, parent in enumerate(parents) if parent == token - 100]
        if children:
            assert ordered[node + 1] == 100 + children[0]
    heads = [token for node, token in enumerate(ordered) if moved[node] != node - 1]
    assert heads == sorted(heads)


def test_the_likeliest_path_comes_first() -> None:
    #   10 - 11 - 14     12 has a sibling 11 that is likelier; 13 follows the root.
    #     \- 12
    #   13
    assert in_runs([10, 11, 12, 13, 14], [-1, 0, 0, -1, 1]) == ([10, 11, 14, 12, 13], [-1, 0, 1, 0, -1])
    assert depths([-1, 0, 1, 0, -1]) == [1, 2, 3, 2, 1]
    assert is_chain([-1, 0, 1])
    assert not is_chain([-1, 0, 0])


@given(parents=trees(), random_order=st.randoms(use_true_random=False))
def test_the_accepted_node_ends_the_longest_path_that_was_emitted(
    parents: Parents, random_order: random.Random
) -> None:
    tokens: list[int] = []
    for node, parent in enumerate(parents):  # siblings hold different tokens
        taken = [tokens[i] for i in range(node) if parents[i] == parent]
        tokens.append(random_order.choice([token for token in range(20) if token not in taken]))
    emitted = [random_order.randrange(20) for _ in range(6)]
    if random_order.random() < 0.8:
        emitted[:3] = [tokens[i] for i in path(parents, random_order.randrange(len(parents)))][:3]
    found = last_accepted(tokens, parents, [*emitted, -1, -1])
    accepted = [
        node
        for node in range(len(parents))
        if [tokens[i] for i in path(parents, node)] == emitted[: len(path(parents, node))]
    ]
    assert found == max(accepted, key=lambda node: len(path(parents, node)), default=-1)


@given(
    drafts=st.lists(st.one_of(st.none(), trees()), min_size=1, max_size=4),
    block_size=st.integers(1, 6),
    seed=st.integers(0, 2**20),
)
def test_every_row_sees_its_path_and_what_is_accepted_stays(
    drafts: list[Parents | None], block_size: int, seed: int
) -> None:
    # Seen to fail without each of: copies, shared rows, the root among them, patched columns, slots, `kept`; and with
    # each block, length or position one off.
    random_order, max_blocks = random.Random(seed), 40
    ids = iter(random_order.sample(range(1000), 400))
    cache: dict[int, object] = {}  # by slot
    plan = BranchPass(block_size, ids)
    tables, texts, first_rows = [], [], []
    row = 0
    for request, parents in enumerate(drafts):
        root = random_order.randint(0, 20)
        tables.append([next(ids) for _ in range(max_blocks)])
        texts.append([("text", request, position) for position in range(root)])
        for position, token in enumerate(texts[-1]):
            cache[tables[-1][position // block_size] * block_size + position % block_size] = token
        first_rows.append(row)
        num_rows = 1 + (3 if parents is None else len(parents))
        if parents is None or is_chain(parents):
            plan.add_run(request, row, root + num_rows)
        else:
            plan.add_tree(
                request,
                row,
                Tree(request, list(range(len(parents))), parents, root, branches(parents, root, block_size)),
                tables[-1],
            )
        row += num_rows

    # The pass: vLLM's slots, changed for the rows of branches; every row's key is its name.
    slots, owner = {}, {}
    for request, (first, text) in enumerate(zip(first_rows, texts, strict=True)):
        stop = first_rows[request + 1] if request + 1 < len(first_rows) else row
        for i in range(first, stop):
            position = len(text) + i - first
            slots[i] = tables[request][position // block_size] * block_size + position % block_size
            owner[i] = request
    slots |= dict(zip(plan.rows, plan.slots, strict=True))
    for source, target in plan.copies:
        for offset in range(block_size):
            cache[target * block_size + offset] = cache.get(source * block_size + offset)
    for i, slot in [*slots.items(), *zip(plan.shared_rows, plan.shared_slots, strict=True)]:
        cache[slot] = ("row", i)

    def nodes_before(i: int) -> list[int]:
        """The rows from the root to row i."""
        request, first = owner[i], first_rows[owner[i]]
        parents = drafts[request]
        if parents is None:
            return list(range(first, i + 1))
        return [first, *(first + 1 + node for node in path(parents, i - first - 1))]

    patches = dict(zip(zip(plan.patched_runs, plan.patched_columns, strict=True), plan.patched_blocks, strict=True))
    assert len(set(plan.patched_blocks)) == len(plan.patched_blocks)
    stops = [*plan.starts[1:], row]
    positions = dict(zip(plan.rows, plan.positions, strict=True))
    for run, (request, start, stop, length) in enumerate(
        zip(plan.owners, plan.starts, stops, plan.lengths, strict=True)
    ):
        table = [patches.get((run, column), block) for column, block in enumerate(tables[request])]
        for i in range(start, stop):
            assert owner[i] == request
            visible = length - (stop - 1 - i)
            seen = [cache[table[p // block_size] * block_size + p % block_size] for p in range(visible)]
            assert seen == [*texts[request], *(("row", before) for before in nodes_before(i))]
            assert positions.get(i, len(texts[request]) + i - first_rows[request]) == visible - 1

    # After the pass, a node of each tree is accepted.
    for tree in plan.trees:
        node = random_order.randint(-1, len(tree.parents) - 1)
        emitted = [tree.tokens[i] for i in path(tree.parents, node)]
        for source, target in plan.kept(tree, [*emitted, -2, -1], tables[tree.request]):
            for offset in range(block_size):
                cache[target * block_size + offset] = cache.get(source * block_size + offset)
        table = tables[tree.request]
        kept = [
            cache[table[p // block_size] * block_size + p % block_size] for p in range(tree.root + len(emitted) + 1)
        ]
        first = first_rows[tree.request]
        rows = [first, *(first + 1 + i for i in path(tree.parents, node))]
        assert kept == [*texts[tree.request], *(("row", i) for i in rows)]


@given(parents=trees(), root=st.integers(0, 20), block_size=st.integers(1, 6), free=st.integers(0, 20))
def test_what_fits_takes_no_more_blocks_than_there_are(parents: Parents, root: int, block_size: int, free: int) -> None:
    count, used = num_fitting(parents, root, block_size, free)
    assert used == sum(branch.num_blocks for branch in branches(parents[:count], root, block_size)) <= free
    if count < len(parents):
        following = next(b for b in branches(parents, root, block_size) if b.start == count)
        assert used + following.num_blocks > free
