"""Verification of branching drafts in vLLM's model runner, without a kernel for trees.

das/engine/branching/tree.py says what lies where. vLLM schedules a branching draft as if it were a chain of as many
tokens: it finds room for them, and takes the rejected ones back. Only the worker knows that they branch. Its KV
cache has more blocks than the scheduler knows of; branches use these. The hooks go onto the objects of one engine:

- builder.build of the attention's metadata: each run of nodes is a request of its own, with its own length and blocks.
- impl.forward of each attention layer: keys and values of rows that branches follow are written for the branches too.
- cudagraph_manager.dispatch (GPU): a full graph has metadata for one run per request, so it must not be used.
- runner.prepare_inputs: the plan of the pass.
- runner.prepare_attn: positions and KV slots of the rows of branches.

das's runner calls the other methods. After drafting it calls `fitting`: this reads the drafter's `parents`,
which say how drafts branch, and calls the drafter's `keep` with the nodes that fit. After sampling it calls
`copy_accepted`, which copies accepted scratch blocks back.

If a drafter does not say that a draft branches, its nodes are verified as a chain: this accepts fewer, but is exact.
vLLM's penalties and bad words take the rows before a row for its text. So requests that use them draft chains.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from das.engine.branching.scratch import check_block_size, copy_blocks, refusal
from das.engine.branching.tree import BranchPass, Tree, branches, is_chain, num_fitting
from das.engine.patches.replace import patch

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner

ATTENTION = ("CPUAttentionBackendImpl", "FlashAttentionImpl")  # checked: they read keys from the cache only


class Branches:
    """Verifies branching drafts in one model runner.

    scratch: KV blocks that the scheduler does not know of. Raises NotInstalled if branching drafts were not checked
    with such a runner.
    """

    def __init__(self, das_runner: "Runner", scratch: range):
        self.das_runner = das_runner
        self.runner = das_runner.vllm
        self.block_size = check_block_size(self.runner)
        self.scratch = scratch
        self.parents: dict[str, list[int]] = {}  # of the drafts that branch, by request
        # For each drafted token of the running pass, the index of the token before it in its request's draft, or -1.
        self.node_parents = np.zeros(0, np.int64)
        self._pass: BranchPass | None = None  # plan of the running pass; None if no draft branches in it
        self._shared: tuple[torch.Tensor, torch.Tensor] | None = None  # rows that branches follow, and their slots
        self._install()

    def _install(self) -> None:
        runner = self.runner
        parallel = runner.parallel_config
        if runner.vllm_config.kv_transfer_config is not None or runner.model_config.uses_mrope:
            raise refusal("engines without KV transfer and multimodal positions")
        if parallel.decode_context_parallel_size > 1 or parallel.use_ubatching:
            raise refusal("engines without decode context parallelism and without microbatches")
        context = runner.compilation_config.static_forward_context
        layers = [context[name] for name in runner.kv_cache_config.kv_cache_groups[0].layer_names]
        if any(type(layer.impl).__name__ not in ATTENTION for layer in layers):
            raise refusal(f"the attention of {' or '.join(ATTENTION)}")
        for layer in layers:
            layer.impl.forward = functools.partial(self._attend, layer.impl.forward)
        for group in runner.attn_groups[0]:
            for builder in group.metadata_builders:
                builder.build = functools.partial(self._build, builder.build)
        patch(runner.cudagraph_manager, "dispatch", self._dispatch)
        runner.prepare_inputs = functools.partial(self._prepare_inputs, runner.prepare_inputs)
        runner.prepare_attn = functools.partial(self._prepare_attn, runner.prepare_attn)

    @property
    def are_running(self) -> bool:
        """Whether a draft branches in the running pass."""
        return self._pass is not None

    # ---- before the pass ----

    def fitting(self, drafts: list[list[int]]) -> list[list[int]]:
        """Returns all rows' drafts without the nodes for which no scratch block is left. Tells the drafter which nodes
        remain."""
        from vllm.distributed import get_tp_group

        drafter = self.das_runner.drafter
        self.parents = get_tp_group().broadcast_object(dict(drafter.parents))
        if self.parents:
            drafts = self._cut(drafts)
            if get_tp_group().is_first_rank:  # the other ranks do not draft
                drafter.keep(self.parents)
        return drafts

    def _cut(self, drafts: list[list[int]]) -> list[list[int]]:
        """Drop the branches for which no scratch block is left, and all branches of requests that may not branch."""
        batch, free = self.das_runner.input_batch, len(self.scratch)
        cut = []
        for row, (name, draft) in enumerate(zip(batch.req_ids, drafts, strict=True)):
            if name in self.parents:
                root = int(batch.num_tokens_no_spec[row]) - 1
                parents = self.parents[name]
                num_nodes, used = num_fitting(parents, root, self.block_size, free if self._may_branch(name) else 0)
                self.parents[name] = parents[:num_nodes]
                free -= used
                draft = draft[:num_nodes]
            cut.append(draft)
        return cut

    def _may_branch(self, name: str) -> bool:
        """Whether drafts of this request may branch. vLLM applies a grammar, penalties and bad words to chains only."""
        params = self.das_runner.requests[name].sampling_params
        penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1.0
        return params.structured_outputs is None and not any(penalties) and not params.bad_words

    def _plan(
        self,
        drafts: Mapping[str, list[int]],
        names: Sequence[str],
        num_scheduled: Sequence[int],
        computed: Sequence[int],
    ) -> BranchPass | None:
        """Plan the rows of the pass and their places, and note `node_parents`. Returns the plan; None if no draft
        branches.

        drafts: the part of each request's draft for which the scheduler found room. names, num_scheduled, computed:
        the pass's requests, their numbers of rows, and how many of their tokens were computed before.
        """
        parents = {name: known[: len(drafts[name])] for name, known in self.parents.items() if name in drafts}
        if all(map(is_chain, parents.values())):
            return None
        tables = self.das_runner.block_tables()
        plan = BranchPass(self.block_size, iter(self.scratch))
        all_parents: list[int] = []
        first_row = 0
        for request, (name, num_rows) in enumerate(zip(names, num_scheduled, strict=True)):
            draft = drafts.get(name, [])
            own = parents.get(name, [])
            if is_chain(own) or len(own) + 1 != num_rows:
                own = list(range(-1, len(draft) - 1))
                plan.add_run(request, first_row, computed[request] + num_rows)
            else:
                found = branches(own, computed[request], self.block_size)
                tree = Tree(request, draft, own, computed[request], found)
                plan.add_tree(request, first_row, tree, tables[request])
            all_parents += own
            first_row += num_rows
        self.node_parents = np.array(all_parents, np.int64)
        return plan

    def _place(self, plan: BranchPass, positions: torch.Tensor, slots: torch.Tensor) -> None:
        """Give the rows of branches their positions and slots, and fill the scratch blocks. positions, slots: of the
        rows of the pass, on the device, changed in place."""
        rows = self._tensor(plan.rows)
        positions[rows] = self._tensor(plan.positions)
        slots[rows] = self._tensor(plan.slots)
        self._shared = self._tensor(plan.shared_rows), self._tensor(plan.shared_slots)
        copy_blocks(self.runner, plan.copies)
        self.das_runner.meter.branches += sum(len(tree.branches) for tree in plan.trees)

    def _tensor(self, values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
        device = self.runner.device
        return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)

    # ---- in the pass ----

    def _dispatch(self, original: Callable[..., Any], num_reqs: int, *args: Any, **kwargs: Any) -> Any:
        if all(map(is_chain, self.parents.values())):
            return original(num_reqs, *args, **kwargs)
        # Full graphs hold some number of requests, and other graphs hold any.
        return replace(original(sys.maxsize, *args, **kwargs), num_reqs=None)

    def _prepare_inputs(self, original: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(scheduled, *args, **kwargs)
        self.das_runner.rows = batch.idx_mapping_np
        self._pass = self._plan(
            scheduled.scheduled_spec_decode_tokens,
            batch.req_ids,
            batch.num_scheduled_tokens.tolist(),
            batch.num_computed_tokens_np.tolist(),
        )
        return batch

    def _prepare_attn(self, original: Callable[..., Any], batch: Any) -> tuple[Any, torch.Tensor]:
        tables, slots = original(batch)  # of a chain
        if self._pass is not None:
            self._place(self._pass, batch.positions, slots[0])
        return tables, slots

    def _build(self, original: Callable[..., Any], prefix: int, metadata: Any, *args: Any, **kwargs: Any) -> Any:
        return original(prefix, metadata if self._pass is None else self._runs(metadata, self._pass), *args, **kwargs)

    def _runs(self, metadata: Any, plan: BranchPass) -> Any:
        """Returns vLLM's CommonAttentionMetadata, changed so that attention sees each run (stretch of a draft without a
        branch) as a request of its own."""
        owners = self._tensor(plan.owners)
        block_table = metadata.block_table_tensor[owners]
        patched = self._tensor(plan.patched_runs), self._tensor(plan.patched_columns)
        block_table[patched] = self._tensor(plan.patched_blocks, block_table.dtype)
        starts = torch.tensor([*plan.starts, metadata.num_actual_tokens], dtype=torch.int32)
        lengths = torch.tensor(plan.lengths, dtype=torch.int32)
        return replace(
            metadata,
            num_reqs=len(plan.owners),
            max_query_len=int(starts.diff().max()),
            query_start_loc=starts.to(self.runner.device),
            query_start_loc_cpu=starts,
            seq_lens=lengths.to(self.runner.device),
            seq_lens_cpu_upper_bound=lengths,
            block_table_tensor=block_table,
            is_prefilling=metadata.is_prefilling[torch.tensor(plan.owners)],
        )

    def _attend(
        self,
        original: Callable[..., Any],
        layer: Any,
        query: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self._pass is not None and self._shared is not None:
            rows, slots = self._shared
            layer.impl.do_kv_cache_update(layer, key[rows], value[rows], kv_cache, slots)
        return original(layer, query, key, value, kv_cache, *args, **kwargs)

    # ---- after the pass ----

    def copy_accepted(self, emitted: Sequence[Sequence[int]]) -> None:
        """Copy the scratch blocks of accepted nodes over the requests' own blocks. emitted: the tokens that each
        request of the pass emitted; negative ones behind them do not matter."""
        plan, self._pass, self._shared = self._pass, None, None
        if plan is not None:
            tables = self.das_runner.block_tables()
            kept = [plan.kept(tree, emitted[tree.request], tables[tree.request]) for tree in plan.trees]
            copy_blocks(self.runner, [copy for copies in kept for copy in copies])
