"""A proposer for tests: it knows what every request will emit, and hides it in random trees."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from das.engine.branching.tree import in_runs, is_chain, last_accepted
from das.verify.admission import PROBLEM_KEY

VOCAB = 250


class TreeProposer:
    """Drafts that branch at random. A path of each is what the request will emit, but seldom the first path.

    truth: by problem id, what its requests will emit; a request goes on like the one that begins as it did.
    sizes: numbers of nodes, from which each draft draws one. Most drafts are put in order as DasProposer does it; in
    others the nodes come in any order in which a parent precedes its children. decoys: the tokens of wrong nodes.
    """

    def __init__(
        self,
        truth: Mapping[str, Sequence[Sequence[int]]],
        sizes: Sequence[int],
        seed: int = 0,
        decoys: Sequence[int] = range(VOCAB),
    ):
        self.truth = truth
        self.sizes = sizes
        self.decoys = decoys
        self.random = random.Random(seed)
        self.parents: dict[str, list[int]] = {}
        self.drafted: dict[str, list[int]] = {}  # the last draft of each request
        self.kept: Mapping[str, Sequence[int]] = {}  # how those that branch do so, as far as the engine has room
        self.num_off_trunk = 0  # passes of a request in which tokens of a branch were accepted

    def attach(self, runner: Any) -> None:
        self.runner = runner

    def propose(self, sampled: list[list[int]], *args: Any, **kwargs: Any) -> list[list[int]]:
        for name, new in zip(self.runner.input_batch.req_ids, sampled, strict=True):
            if name in self.drafted and new:
                parents = self.kept.get(name, [])
                node = last_accepted(self.drafted[name], parents, new)
                self.num_off_trunk += not is_chain(parents[: node + 1])
        self.parents, self.drafted, self.kept = {}, {}, {}
        return [
            self._draft(name) if new else [] for name, new in zip(self.runner.input_batch.req_ids, sampled, strict=True)
        ]

    def keep(self, parents: Mapping[str, Sequence[int]]) -> None:
        self.kept = dict(parents)

    def _draft(self, name: str) -> list[int]:
        state = self.runner.requests[name]
        output = list(state.output_token_ids)
        texts = self.truth.get((state.sampling_params.extra_args or {}).get(PROBLEM_KEY, ""), [])
        coming = next((list(text[len(output) :]) for text in texts if list(text[: len(output)]) == output), [])
        tokens, parents = self.tree(coming)
        self.drafted[name] = tokens
        if parents:
            self.parents[name] = parents
        return tokens

    def tree(self, coming: Sequence[int]) -> tuple[list[int], list[int]]:
        """A random tree. coming: what the request will emit; a path of the tree is mostly the beginning of it."""
        pick = self.random
        size = pick.choice(self.sizes)
        right = pick.choice([0.0, 0.2, 0.5, 0.8, 1.0])  # how often the right token is added where it can be
        deep = pick.choice([0.2, 0.6, 0.95])  # how often a node follows one of the last two
        tokens: list[int] = []
        parents: list[int] = []
        path = [-1]  # the nodes that are right; path[n] holds coming[n - 1]
        while len(tokens) < size:
            node = len(tokens)
            parent = pick.choice([node - 1, path[-1]]) if pick.random() < deep else pick.randint(-1, node - 1)
            token = pick.choice(self.decoys)
            if parent == path[-1] and len(path) <= len(coming) and pick.random() < right:
                token = coming[len(path) - 1]
            if any(p == parent and t == token for p, t in zip(parents, tokens, strict=True)):
                continue
            tokens.append(token)
            parents.append(parent)
            if parent == path[-1] and len(path) <= len(coming) and token == coming[len(path) - 1]:
                path.append(node)
        return in_runs(tokens, parents) if pick.random() < 0.8 else (tokens, parents)
