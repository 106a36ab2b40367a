"""Drafts that branch: the shape of a tree, its best nodes first, what is learned from them, misuse."""

from pathlib import Path

import numpy as np
import pytest

from das.drafter import HistoryDrafter, TreeDraft
from tests.drafter.counted import counted_core


def branching_text(rng: np.random.Generator, n: int) -> list[int]:
    """A 0, then one of three tokens with probabilities 0.6, 0.3 and 0.1, then a token that depends on it, and so on."""
    return [t for k in rng.choice(3, n, p=[0.6, 0.3, 0.1]) for t in (0, 1 + int(k), 11 + int(k))]


def drafter_of(text: list[int], **options: float) -> HistoryDrafter:
    drafter = HistoryDrafter(**{"min_prob": 0.0, **options})  # type: ignore[arg-type]
    drafter.begin("r", "p", [])
    drafter.observe("r", text)
    return drafter


def tree_of(drafter: HistoryDrafter, nodes: int, floor: float = 0.0) -> TreeDraft:
    return drafter.propose_tree(["r"], [nodes], [floor])[0]


def test_shape_of_a_tree() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(0), 300), 0])
    tree = tree_of(drafter, 60)
    assert len(tree.tokens) == 60
    children: dict[int, list[int]] = {}
    for node, (parent, prob, joint) in enumerate(zip(tree.parents, tree.probs, tree.joint, strict=True)):
        assert -1 <= parent < node
        assert joint == (tree.joint[parent] if parent >= 0 else 1.0) * prob
        children.setdefault(parent, []).append(node)
    assert tree.joint == sorted(tree.joint, reverse=True)
    for siblings in children.values():
        assert len({tree.tokens[node] for node in siblings}) == len(siblings)
        assert sum(tree.probs[node] for node in siblings) <= 1.0 + 1e-9
    assert sorted(tree.tokens[node] for node in children[-1]) == [1, 2, 3]
    assert tree.tokens[0] == 1


def test_the_first_nodes_of_a_tree_are_the_smaller_tree() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(1), 300), 0])
    large = tree_of(drafter, 50)
    for n in (0, 1, 2, 7, 31):
        small = tree_of(drafter, n)
        assert small == TreeDraft(large.tokens[:n], large.parents[:n], large.probs[:n], large.joint[:n])


def test_no_node_is_below_the_floor() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(2), 300), 0])
    everything = tree_of(drafter, 200)
    some = tree_of(drafter, 200, floor=0.05)
    assert 3 < len(some.tokens) < len(everything.tokens)
    assert some.joint == [joint for joint in everything.joint if joint >= 0.05]
    strict = drafter_of([*branching_text(np.random.default_rng(2), 300), 0], min_prob=0.05)
    assert tree_of(strict, 200) == some


def test_a_text_without_alternatives_gives_a_chain() -> None:
    drafter = drafter_of([*range(100, 140), *range(100, 110)])
    tree = tree_of(drafter, 12)
    (chain,) = drafter.propose(["r"], [12])
    assert tree.parents == list(range(-1, 11))
    assert (tree.tokens, tree.probs) == (chain.tokens, chain.probs)


def test_nothing_to_draft() -> None:
    drafter = drafter_of([])
    assert tree_of(drafter, 8) == TreeDraft([], [], [], [])
    assert len(drafter.propose_tree([], [])) == 0
    batch = drafter.propose_tree(["r"], [0])
    assert (batch.tokens.shape, batch.counts.tolist()) == ((1, 0), [0])


def test_rows_have_their_own_sizes() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(3), 300), 0])
    names = [f"{i}" for i in range(20)]  # more than are drafted side by side
    for name in names:
        drafter.begin(name, "p", [])
        drafter.observe(name, [0])
    batch = drafter.propose_tree(names, list(range(20)))
    assert batch.counts.tolist() == list(range(20))
    assert {a.shape for a in (batch.tokens, batch.parents, batch.probs, batch.joint)} == {(20, 19)}
    assert batch.tokens.dtype == batch.parents.dtype == np.int32


def test_joint_probabilities_are_learned_along_the_emitted_path() -> None:
    """The expected number of accepted nodes, and that of nodes off the likeliest path, equal what is accepted."""
    rng = np.random.default_rng(4)
    drafter = drafter_of(branching_text(rng, 20))
    sums = np.zeros((2, 2))  # [all nodes, nodes off the likeliest path]: expected, accepted
    rounds = 3000
    for i in range(rounds):
        drafter.observe("r", [0])
        tree = tree_of(drafter, 12)
        coming = branching_text(rng, 3)[1:]
        at, accepted = -1, []
        for node, parent in enumerate(tree.parents):
            if parent == at and len(accepted) < len(coming) and tree.tokens[node] == coming[len(accepted)]:
                accepted.append(at := node)
        trunk = {-1}
        for node, parent in enumerate(tree.parents):
            if parent in trunk and not any(p == parent for p in tree.parents[:node]):
                trunk.add(node)
        if i >= rounds // 3:
            sums[0] += sum(tree.joint), len(accepted)
            off = set(range(len(tree.tokens))) - trunk
            sums[1] += sum(tree.joint[node] for node in off), len(off & set(accepted))
        drafter.observe("r", coming)
    assert sums[:, 0] / sums[:, 1] == pytest.approx(1.0, abs=0.1)


def test_a_tree_replaces_the_chain_that_was_drafted_before() -> None:
    """What is learned comes from the last draft, whichever kind it was."""
    text = [*branching_text(np.random.default_rng(5), 100), 0]
    once, twice = drafter_of(text), drafter_of(text)
    for nodes, limit in ((16, 0), (0, 16)):
        twice.propose(["r"], [8])
        tree_of(twice, 8)
        for drafter in (once, twice):
            if nodes:
                tree_of(drafter, nodes)
            else:
                drafter.propose(["r"], [limit])
            drafter.observe("r", [1, 11, 0])
        assert np.array_equal(once.weights(), twice.weights())


def test_memory_of_trees_is_counted_and_returned() -> None:
    drafter = HistoryDrafter()
    before = drafter.index_bytes
    for i in range(4):
        drafter.begin(f"{i}", "p", [])
        drafter.observe(f"{i}", [1, 2, 3] * 5)
    without = drafter.index_bytes
    drafter.propose_tree([f"{i}" for i in range(4)], [64] * 4)
    assert without + 4 * 64 * 1024 < drafter.index_bytes < without + 4 * 64 * 4096
    for i in range(4):
        drafter.end(f"{i}", keep=False)
    assert drafter.index_bytes < before + 10_000


def test_a_node_costs_what_a_chains_token_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In basic blocks that the core executes: the same where the tree is a chain. Where there are alternatives, more of
    its nodes have several occurrences to mix."""
    core = counted_core(tmp_path, monkeypatch)

    def cost(draft: str, text: list[int]) -> float:
        drafter = drafter_of(text)
        before = core.executed()
        drafted = tree_of(drafter, 16).tokens if draft == "tree" else drafter.propose(["r"], [16])[0].tokens
        return (core.executed() - before) / len(drafted)

    plain = [*range(100, 140), *range(100, 110)]
    assert cost("tree", plain) < 1.15 * cost("chain", plain)
    branching = [*branching_text(np.random.default_rng(6), 300), 0]
    assert cost("tree", branching) < 1.4 * cost("chain", branching)


def test_a_tree_has_at_most_1024_nodes() -> None:
    drafter = drafter_of([1, 2, 3])
    with pytest.raises(ValueError, match=r"nodes must be in 0\.\.1024, got 1025\.\.1025"):
        drafter.propose_tree(["r"], [1025])


def test_a_floor_for_branches() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(4), 300), 0])
    (chain,) = drafter.propose(["r"], [12])
    assert drafter.propose_tree(["r"], [12], branch_floor=1.1)[0].tokens == chain.tokens, "no branch is so likely"
    free = tree_of(drafter, 40)
    (some,) = drafter.propose_tree(["r"], [40], branch_floor=0.1)
    siblings = [i for i, parent in enumerate(some.parents) if parent in some.parents[:i]]
    assert min(some.joint[i] for i in siblings) >= 0.1
    below = [i for i, parent in enumerate(free.parents) if parent in free.parents[:i] and free.joint[i] < 0.1]
    assert below
    assert min(some.joint) < 0.1, "other nodes may be less likely"
    for wrong in (float("nan"), "high"):
        with pytest.raises(ValueError, match="number"):
            drafter.propose_tree(["r"], [12], branch_floor=wrong)  # type: ignore[arg-type]


def test_a_tree_is_worth_as_much_as_the_chain_that_budgets_see() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(0), 300), 0])
    drafter.begin("new", "q", [5])
    trees = drafter.propose_tree(["r", "new"], [20, 20])
    chains = trees.as_chains()
    assert (len(trees[0].joint), len(trees[1].joint)) == (20, 0)
    for tree, chain in zip(trees, (chains[0], chains[1]), strict=True):
        assert chain.tokens == tree.tokens
        assert np.cumprod(chain.probs) == pytest.approx(tree.joint, rel=1e-12)
