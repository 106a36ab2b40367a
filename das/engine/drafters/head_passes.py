"""Passes of an EAGLE-3 head over hidden states of the policy that have waited for it.

vLLM's own proposer runs the head after every pass of the policy. Here the head waits until a request wants its drafts,
and then reads all that the request's text grew by since, in one pass. KEPT tokens of a request wait at most. If there
are more, the oldest are forgotten: the head's attention then begins behind them, at the begin of a block.

Where the head does not pay, nobody wants its drafts, and the waiting must be cheap: a pass is noted as it is, and
sorted by request only when the head is about to read.

The head has KV blocks of its own under the numbers of the policy's, and writes into these alone. A request whose prompt
is in the prefix cache gets blocks that the policy has filled, and the head perhaps has not: `_written` knows.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from das.engine.drafters.draft_passes import attention_inputs
from das.engine.scratch import check_block_size

KEPT = 128  # tokens; 21 KB each for a policy with hidden states of 3584 numbers in 16 bits


@dataclass(slots=True)
class _Unread:
    """Hidden states of a request that the head has not read."""

    start: int  # position of the first
    stop: int  # behind the last
    seen_from: int = 0  # the first position that the head may look at
    parts: list[torch.Tensor] = field(default_factory=list)  # [tokens, layers * hidden] each

    def append(self, part: torch.Tensor, kept: int) -> None:
        self.parts.append(part)
        self.stop += len(part)
        while self.stop - self.start - len(self.parts[0]) >= kept:
            self.start += len(self.parts.pop(0))
            self.seen_from = self.start


@dataclass(frozen=True, slots=True)
class _Pass:
    """A pass of the policy that is not sorted by request yet. All arrays are of its requests, int64."""

    names: list[str]
    begins: np.ndarray  # of each request's rows in the pass; one more at the end
    starts: np.ndarray  # position of each request's first row
    counts: np.ndarray  # rows that the head may read: those of accepted tokens and prompts
    hidden: torch.Tensor  # [rows, layers * hidden]


class HeadPasses:
    """Passes of the head in `runner`'s drafter over rows of the runner's batch. It stays with the runner, because the
    blocks of the head's KV cache do.
    """

    def __init__(self, runner: Any):
        self.runner = runner
        self.block_size = check_block_size(runner)
        self._kept = max(KEPT, 2 * self.block_size)
        self._drafter = runner.drafter
        self._unsorted: list[_Pass] = []
        self._num_unsorted = 0  # tokens in them that the head may read
        self._unread: dict[str, _Unread] = {}  # by request
        # Of each KV block, whether the head has read all tokens that are in it.
        self._written = np.zeros(runner.kv_cache_config.num_blocks, bool)
        self._rows = np.empty(0, np.int64)  # of the batch, that draft
        self._first = np.empty(0, np.int64)  # of each row, the first position that the head sees
        self._next = np.empty(0, np.int64)  # the position of its next input
        self._hidden = torch.empty(0)  # and what that takes from the input before it, [rows, hidden]

    def keep(self, aux_hidden_states: list[torch.Tensor]) -> None:
        """Note what the pass of the policy that just ended computed for accepted tokens and prompts.

        aux_hidden_states: of each layer that the head reads, [tokens, hidden].
        """
        runner, batch = self.runner, self.runner.input_batch
        num = batch.num_reqs
        begins = runner.query_start_loc.np[: num + 1].astype(np.int64)
        starts = batch.num_computed_tokens_cpu[:num].astype(np.int64)
        lengths = begins[1:] - begins[:-1]
        self._forget_blocks(starts, lengths)
        # The head takes a token together with the hidden state before it, so the last token has none to read yet.
        counts = np.minimum(lengths, batch.num_tokens_no_spec[:num] - 1 - starts)
        hidden = torch.cat(aux_hidden_states, dim=-1)
        if len(hidden) > 2 * self._kept:  # of a large pass only the rows that may be read stay in memory
            hidden = torch.cat([hidden[i : i + n] for i, n in zip(begins.tolist(), counts.tolist(), strict=False)])
            begins = np.concatenate(([0], np.cumsum(counts)))
        self._unsorted.append(_Pass(batch.req_ids[:num], begins, starts, counts, hidden))
        self._num_unsorted += int(counts.sum())
        if self._num_unsorted > self._kept * num:
            self._sort()

    def _forget_blocks(self, starts: np.ndarray, lengths: np.ndarray) -> None:
        """The policy has begun to fill some blocks anew: the head has read nothing of what is in them now."""
        size = self.block_size
        firsts, stops = -(-starts // size), -(-(starts + lengths) // size)
        begun = np.flatnonzero(firsts < stops)
        if not len(begun):
            return
        tables = self._tables()
        for row in begun.tolist():
            self._written[tables[row, firsts[row] : stops[row]]] = False

    def _tables(self) -> np.ndarray:
        """KV blocks of each row of the batch, int32 [rows, blocks]."""
        tables: np.ndarray = self.runner.input_batch.block_table[self._drafter.kv_cache_gid].block_table.np
        return tables

    def _sort(self) -> None:
        """Give each request what the waiting passes computed for it."""
        live = self.runner.requests
        for done in self._unsorted:
            whole = len(done.hidden) <= 2 * self._kept  # a part of more keeps only its own tokens in memory
            for name, begin, start, count in zip(
                done.names, done.begins.tolist(), done.starts.tolist(), done.counts.tolist(), strict=False
            ):
                if name not in live:
                    continue
                unread = self._unread.get(name)
                if unread is None or unread.stop != start:  # new, or computed anew after it was preempted
                    unread = self._unread[name] = _Unread(start, start, self._seen_from(name, start))
                part = done.hidden[begin : begin + count]
                unread.append(part if whole else part.clone(), self._kept)
        self._unsorted.clear()
        self._num_unsorted = 0
        if len(self._unread) > 2 * len(live):
            self._unread = {name: own for name, own in self._unread.items() if name in live}

    def _seen_from(self, name: str, start: int) -> int:
        """The first position from which on the head has read all of a request's text before `start`."""
        row, size = self.runner.input_batch.req_id_to_index.get(name), self.block_size
        if row is None:  # it waits for blocks
            return start // size * size
        unread = np.flatnonzero(~self._written[self._tables()[row, : start // size]])
        return int(unread[-1] + 1) * size if len(unread) else 0

    def forget(self, request: str) -> None:
        """A request finished: nobody will read its hidden states."""
        self._unread.pop(request, None)

    def begin(self, rows: np.ndarray) -> None:
        """The next passes draft for these rows of the batch, int64 [R]."""
        self._sort()
        names = self.runner.input_batch.req_ids
        size = self.block_size
        self._rows = rows
        self._first = np.array([-(-self._unread[names[row]].seen_from // size) * size for row in rows.tolist()])
        self._next = self.runner.input_batch.num_tokens_no_spec[rows].astype(np.int64) - 1
        self._hidden = torch.empty(0)

    def num_unread(self, among: np.ndarray) -> int:
        """Tokens that `read` would compute. among: as there."""
        unread = [self._unread[self.runner.input_batch.req_ids[row]] for row in self._readers(among).tolist()]
        return sum(own.stop - own.start for own in unread)

    def read(self, among: np.ndarray) -> torch.Tensor:
        """Read what the head has not read of some rows that began, int64 [A], as indices into those.

        Returns the hidden states behind their last tokens, [A, hidden]: logits are made from them.
        """
        batch = self.runner.input_batch
        readers = self._readers(among)
        firsts, starts, counts, tokens, parts = [], [], [], [], []
        blocks = self._tables()
        for row in readers.tolist():
            unread = self._unread[batch.req_ids[row]]
            first = -(-unread.seen_from // self.block_size) * self.block_size
            start = max(unread.start, first)
            own = torch.cat(unread.parts)[start - unread.start :]
            tokens.append(batch.token_ids_cpu[row, start + 1 : unread.stop + 1])
            firsts.append(first)
            starts.append(start)
            counts.append(len(own))
            parts.append(own)
            # The last block may get more tokens, so it counts when all of it has been read.
            self._written[blocks[row, start // self.block_size : unread.stop // self.block_size]] = True
            unread.start, unread.parts = unread.stop, []
        size = np.array(counts, np.int64)
        combined = self._drafter.model.combine_hidden_states(torch.cat(parts))
        last, hidden = self._run(
            readers, np.array(firsts, np.int64), np.array(starts, np.int64), size, np.concatenate(tokens), combined
        )
        ends = torch.from_numpy(np.cumsum(size)[: len(among)] - 1).to(last.device)
        self._hidden = hidden.new_zeros(len(self._rows), hidden.shape[1])
        self._hidden[torch.from_numpy(among)] = hidden[ends]
        return last[ends]

    def go_on(self, among: np.ndarray, tokens: np.ndarray) -> torch.Tensor:
        """Compute a drafted token of some of the rows that were read. among, and what is returned: as in `read`."""
        where = torch.from_numpy(among)
        ones = np.ones(len(among), np.int64)
        last, self._hidden[where] = self._run(
            self._rows[among], self._first[among], self._next[among], ones, tokens, self._hidden[where]
        )
        self._next[among] += 1
        return last

    def _readers(self, among: np.ndarray) -> np.ndarray:
        """Rows of the batch whose hidden states are read: first those that draft, then those with a prompt to read,
        because other requests may share its blocks.
        """
        batch = self.runner.input_batch
        rows = self._rows[among]
        drafting = set(rows.tolist())
        prompts = [
            row
            for row, name in enumerate(batch.req_ids)
            if row not in drafting
            and (unread := self._unread[name]).start < min(unread.stop, batch.num_prompt_tokens[row])
            and not unread.seen_from
        ]
        return np.concatenate((rows, np.array(prompts, np.int64)))

    def _run(
        self,
        rows: np.ndarray,
        firsts: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        tokens: np.ndarray,
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A pass over counts[i] tokens of each row, from position starts[i] on. The head sees nothing before firsts[i].

        tokens: those behind the positions; hidden: what the head takes beside them, [tokens, hidden]. Returns hidden
        states for logits and those for the next input, both [tokens, hidden].
        """
        from vllm.forward_context import set_forward_context

        drafter, device = self._drafter, self.runner.device
        group = drafter.draft_attn_groups[0]
        tables = self._tables()[rows].copy()
        for table, skipped in zip(tables, (firsts // self.block_size).tolist(), strict=True):
            if skipped:
                table[:-skipped] = table[skipped:].copy()
        common, positions = attention_inputs(device, tables, self.block_size, starts - firsts, counts)
        positions += np.repeat(firsts, counts)
        names = group.layer_names
        with set_forward_context(
            dict.fromkeys(names, group.get_metadata_builder().build(0, common)),
            self.runner.vllm_config,
            num_tokens=len(positions),
            slot_mapping=dict.fromkeys(names, common.slot_mapping),
            skip_compiled=True,
        ):
            last, after = drafter.model(
                input_ids=torch.from_numpy(tokens.astype(np.int32)).to(device),
                positions=torch.from_numpy(positions).to(device),
                hidden_states=hidden,
                inputs_embeds=None,
            )
        return last, after
