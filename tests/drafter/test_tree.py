"""Drafts that branch: the shape of a tree, what is learned from it, its costs. Floors are in test_reference.py."""

import numpy as np
import pytest

from das.drafter import HistoryDrafter, TreeDraft
from tests.drafter.counted import counted_core


def branching_text(rng: np.random.Generator, n: int) -> list[int]:
    """A 0, then one of three tokens with probabilities 0.6, 0.3 and 0.1, then a token that depends on it, and so on."""
    return [t for k in rng.choice(3, n, p=[0.6, 0.3, 0.1]) for t in (0, 1 + int(k), 11 + int(k))]


def drafter_of(text: list[int]) -> HistoryDrafter:
    drafter = HistoryDrafter(min_prob=0.0)
    drafter.begin("r", "p", [])
    drafter.observe("r", text)
    return drafter


def tree_of(drafter: HistoryDrafter, nodes: int) -> TreeDraft:
    return drafter.propose_tree(["r"], [nodes])[0]


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


def test_a_node_costs_what_a_chains_token_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In basic blocks that the core executes: the same where the tree is a chain. Where there are alternatives, more of
    its nodes have several occurrences to mix."""
    core = counted_core(monkeypatch)

    def cost(draft: str, text: list[int]) -> float:
        drafter = drafter_of(text)
        before = core.executed()
        drafted = tree_of(drafter, 16).tokens if draft == "tree" else drafter.propose(["r"], [16])[0].tokens
        return (core.executed() - before) / len(drafted)

    plain = [*range(100, 140), *range(100, 110)]
    assert cost("tree", plain) < 1.15 * cost("chain", plain)
    branching = [*branching_text(np.random.default_rng(6), 300), 0]
    assert cost("tree", branching) < 1.4 * cost("chain", branching)


def test_a_tree_is_worth_as_much_as_the_chain_that_budgets_see() -> None:
    drafter = drafter_of([*branching_text(np.random.default_rng(0), 300), 0])
    drafter.begin("new", "q", [5])
    trees = drafter.propose_tree(["r", "new"], [20, 20])
    chains = trees.as_chains()
    assert (len(trees[0].joint), len(trees[1].joint)) == (20, 0)
    for tree, chain in zip(trees, (chains[0], chains[1]), strict=True):
        assert chain.tokens == tree.tokens
        assert np.cumprod(chain.probs) == pytest.approx(tree.joint, rel=1e-12)
