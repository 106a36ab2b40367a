"""Runs an EAGLE-3 head over hidden states of the policy.

vLLM's own proposer runs the head after every pass of the policy. Here the head runs only when a request wants its
drafts. Then it reads, in one pass, all tokens that the request got since the head's last pass. At most KEPT tokens of a
request are kept. If there are more, the oldest are forgotten: the head's attention then begins after them, at the
beginning of a block.

While the head does not pay, nobody asks for its drafts, and keeping tokens must be cheap. So each pass only notes, as
whole numbers, which rows belong to which request. Tensors are cut and joined when the head reads them.

The head has its own KV blocks, numbered like the policy's, and writes into these only. A request whose prompt is in the
prefix cache gets blocks that the policy has filled, but perhaps not the head: `_written` says what the head has filled.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from das.engine.branching.scratch import check_block_size
from das.engine.runner.draft_passes import in_pass, pass_inputs

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner

KEPT = 128  # tokens; 21 KB each for a policy with hidden states of 3584 numbers in 16 bits


@dataclass(frozen=True)
class PolicyPass:
    """A pass of the policy. begins: the first row of each request of the batch in the pass, and the row behind the last
    one, int [requests + 1]. starts: the position of this row's token, int [requests]. layers: the hidden states of each
    layer that the head reads, [rows, hidden]; nothing may write into them later.
    """

    begins: np.ndarray
    starts: np.ndarray
    layers: list[torch.Tensor]


class _Pass:
    """Hidden states of a pass of the policy. They are joined when some of them are first read.

    layers: the states of each layer that the head reads, [rows, hidden]. Nothing may write into them later.
    """

    __slots__ = ("_layers",)

    def __init__(self, layers: list[torch.Tensor]):
        self._layers = layers

    def rows(self, begin: int, end: int) -> torch.Tensor:
        """Returns the hidden states of the rows from `begin` up to `end`, [rows, layers * hidden]."""
        if len(self._layers) > 1:
            self._layers = [torch.cat(self._layers, dim=-1)]
        return self._layers[0][begin:end]

    def copy(self, begin: int, end: int) -> "_Pass":
        """Returns a copy of the rows from `begin` up to `end`, in memory of its own."""
        return _Pass([layer[begin:end].clone() for layer in self._layers])


@dataclass(slots=True)
class _Unread:
    """Hidden states of a request that the head has not read."""

    owner: Any  # the runner's object of the request: another request may get the id
    start: int  # position of the first unread token
    stop: int  # the position behind the last one
    seen_from: int  # the first position that the head may look at
    parts: deque[tuple[_Pass, int, int]] = field(default_factory=deque)  # (pass, first row, row behind the last)

    def forget(self, kept: int) -> None:
        """Forget the oldest passes, as long as at least `kept` tokens remain."""
        while self.parts:
            _, begin, end = self.parts[0]
            if self.stop - self.start - (end - begin) < kept:
                return
            self.parts.popleft()
            self.start += end - begin
            self.seen_from = self.start


class HeadPasses:
    """Runs passes of a head over rows of the runner's batch. There is one object for a runner, because a runner has one
    KV cache of the head.

    model: the head's torch module. attention: vLLM's AttentionGroup of its layer. kv_group: index of the group of KV
    caches that the layer belongs to.
    """

    def __init__(self, das_runner: "Runner", model: Any, attention: Any, kv_group: int):
        self.das_runner, self.model = das_runner, model
        self.attention, self._kv_group = attention, kv_group
        self.runner = runner = das_runner.vllm
        self.block_size = check_block_size(runner)
        self._kept = max(KEPT, 2 * self.block_size)
        self._decode_rows = 1 + int(runner.vllm_config.speculative_config.num_speculative_tokens)  # for each request
        self._unread: dict[str, _Unread] = {}  # by request
        # For each KV block, whether the head has read all tokens in it.
        self._written = np.zeros(runner.kv_cache_config.num_blocks, bool)
        self._skipped = False  # whether passes of the policy went by unnoted since the last one that was noted
        self._late: set[str] = set()  # requests whose kept tokens do not yet reach the beginning of a block
        self._rows = np.empty(0, np.int64)  # rows of the batch that draft
        self._first = np.empty(0, np.int64)  # for each of them, the first position that the head sees
        self._next = np.empty(0, np.int64)  # the position of its next input
        self._hidden = torch.empty(0)  # the hidden state that goes with the next input, [rows, hidden]

    def skip(self) -> None:
        """Note no hidden states of the policy's pass that just ended, because the head rests."""
        self._skipped = True

    def keep(self, scheduled: Any, resumed: Collection[str], policy_pass: PolicyPass) -> None:
        """Note the hidden states of accepted tokens and prompts in the pass of the policy that just ended.

        scheduled: vLLM's SchedulerOutput for this pass. resumed: requests that went on with it after a preemption.
        """
        if self._skipped:  # nobody knows what has come into the blocks since
            self._unread, self._late, self._skipped = {}, set(), False
            self._written[:] = False
        batch, live, known = self.das_runner.input_batch, self.das_runner.requests, self._unread
        self._note_blocks(scheduled, resumed)
        num = batch.num_reqs
        begins, starts = policy_pass.begins.tolist(), policy_pass.starts.tolist()
        lengths = batch.num_tokens_no_spec[:num].tolist()
        done = _Pass(policy_pass.layers)
        # After a pass with long prompts, rows stay in memory only as long as their own request wants them.
        apart = begins[-1] > num * self._decode_rows
        # The loop uses whole numbers, because arrays take longer at the few requests that most passes have.
        for row, (name, begin, start, length) in enumerate(zip(batch.req_ids, begins, starts, lengths, strict=False)):
            # The head takes a hidden state together with the token behind it. So states are kept up to the one before
            # the last token. Further rows are those of rejected drafts.
            count = begins[row + 1] - begin
            if count >= length - start:
                count = length - 1 - start
            unread = known.get(name)
            # The request is new, or another request had its id, or vLLM showed no states for some of its tokens.
            if unread is None or unread.stop != start or unread.owner is not live[name]:
                unread = known[name] = _Unread(live[name], start, start, self._seen_from(row, start))
                if start % self.block_size:
                    self._late.add(name)
            if apart:
                unread.parts.append((done.copy(begin, begin + count), 0, count))
            else:
                unread.parts.append((done, begin, begin + count))
            unread.stop = start + count
            if unread.stop - unread.start > self._kept:
                unread.forget(self._kept)
        if len(known) > 2 * len(live):
            self._unread = {name: unread for name, unread in known.items() if name in live}

    def _note_blocks(self, scheduled: Any, resumed: Collection[str]) -> None:
        """Note that the head has read nothing in the blocks that requests just got, except for blocks from the prefix
        cache.

        A request that continues after a preemption has other blocks than before, so its kept hidden states are dropped.
        """
        group, size = self._kv_group, self.block_size
        for name in resumed:
            self._unread.pop(name, None)
        for new in scheduled.scheduled_new_reqs:
            self._written[new.block_ids[group][new.num_computed_tokens // size :]] = False
        others = scheduled.scheduled_cached_reqs
        for i, blocks in enumerate(others.new_block_ids):
            if blocks is not None:
                hits = others.num_computed_tokens[i] // size if others.req_ids[i] in resumed else 0
                self._written[blocks[group][hits:]] = False

    def _tables(self) -> np.ndarray:
        """Returns the KV blocks of each row of the batch, int32 [rows, blocks]."""
        return self.das_runner.block_tables(self._kv_group)

    def _seen_from(self, row: int, start: int) -> int:
        """Return where the gap-free text before `start` begins: the head has read all the row's tokens from this
        position up to `start`. If `start` lies inside a KV block, return `start`, because nobody knows how much of that
        block the head has read.
        """
        if start % self.block_size:  # nobody knows how much of a partly filled block the head has read
            return start
        unread = np.flatnonzero(~self._written[self._tables()[row, : start // self.block_size]])
        return int(unread[-1] + 1) * self.block_size if len(unread) else 0

    def forget(self, request: str) -> None:
        """Forget the hidden states of a finished request. They are kept if the runner still has a request of this id:
        another request got the id, or the request goes on in the next rollout.
        """
        if request not in self.das_runner.requests:
            self._unread.pop(request, None)
            self._late.discard(request)

    def _first_of(self, unread: _Unread) -> int:
        """Returns the first position of the request's text that the head sees. It is the beginning of a block."""
        return -(-unread.seen_from // self.block_size) * self.block_size

    def able(self, requests: Sequence[str]) -> np.ndarray | None:
        """Returns whether each request has text that the head can read, bool [R]; None: all requests have."""
        if not self._late:
            return None
        self._late = {name for name in self._late & self._unread.keys() if not self._has_begun(self._unread[name])}
        return np.array([name not in self._late for name in requests])

    def _has_begun(self, unread: _Unread) -> bool:
        return self._first_of(unread) < unread.stop

    def num_unread(self, rows: np.ndarray, among: np.ndarray) -> int:
        """Returns the number of tokens that `read` would compute with the same arguments."""
        names = self.das_runner.input_batch.req_ids
        unread = [self._unread[names[row]] for row in self._readers(rows[among])]
        return sum(own.stop - max(own.start, self._first_of(own)) for own in unread)

    def read(self, rows: np.ndarray, among: np.ndarray) -> torch.Tensor:
        """Begin to draft for `rows` of the batch, int64 [R], and let the head read the unread text of some of them.

        among: the rows whose text is read, as indices into `rows`, int64 [A]. Returns the head's hidden states at the
        last tokens of these rows, [A, hidden], from which logits are made.
        """
        batch, blocks, size = self.das_runner.input_batch, self._tables(), self.block_size
        readers = self._readers(rows[among])
        texts = self.das_runner.texts()
        firsts, starts, counts, tokens, parts = [], [], [], [], []
        for row in readers:
            unread = self._unread[batch.req_ids[row]]
            first = self._first_of(unread)
            start = max(unread.start, first)
            own = [done.rows(begin, end) for done, begin, end in unread.parts]
            parts.append((own[0] if len(own) == 1 else torch.cat(own))[start - unread.start :])
            tokens.append(texts[row, start + 1 : unread.stop + 1])
            firsts.append(first)
            starts.append(start)
            counts.append(unread.stop - start)
            # The last block may get more tokens, so it counts when all of it has been read.
            self._written[blocks[row, start // size : unread.stop // size]] = True
            unread.start = unread.stop
            unread.parts.clear()
        self._rows = rows
        self._first = np.zeros(len(rows), np.int64)
        self._first[among] = firsts[: len(among)]
        self._next = batch.num_tokens_no_spec[rows].astype(np.int64) - 1
        combined = self.model.combine_hidden_states(torch.cat(parts))
        last, hidden = self._run(
            np.array(readers), np.array(firsts), np.array(starts), np.array(counts), np.concatenate(tokens), combined
        )
        ends = torch.from_numpy(np.cumsum(counts)[: len(among)] - 1).to(last.device)
        self._hidden = hidden.new_zeros(len(rows), hidden.shape[1])
        self._hidden[torch.from_numpy(among)] = hidden[ends]
        return last[ends]

    def go_on(self, among: np.ndarray, tokens: np.ndarray) -> torch.Tensor:
        """Compute the hidden states from which the next drafted token of some rows is drawn. tokens: the drafted tokens
        that the head gets as input, int64 [A]. For `among` and the result see `read`."""
        where = torch.from_numpy(among)
        ones = np.ones(len(among), np.int64)
        last, self._hidden[where] = self._run(
            self._rows[among], self._first[among], self._next[among], ones, tokens, self._hidden[where]
        )
        self._next[among] += 1
        return last

    def _readers(self, drafting: np.ndarray) -> list[int]:
        """Return the rows of the batch whose text the head must read. The rows in `drafting` come first.

        Other rows follow while part of their prompt is unread and the head has read all that comes before it: another
        request may share the prompt's KV blocks. drafting: the rows that draft, int64 [A].
        """
        batch, rows = self.das_runner.input_batch, drafting.tolist()
        prompts = batch.num_prompt_tokens[: batch.num_reqs].tolist()
        for row in sorted(set(range(batch.num_reqs)).difference(rows)):
            unread = self._unread[batch.req_ids[row]]
            if unread.start < min(unread.stop, prompts[row]) and not unread.seen_from:
                rows.append(row)
        return rows

    def _run(
        self,
        rows: np.ndarray,
        firsts: np.ndarray,
        starts: np.ndarray,
        counts: np.ndarray,
        tokens: np.ndarray,
        hidden: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run a pass over counts[i] tokens of row i from position starts[i] on. The head sees nothing before firsts[i].

        tokens: for each position, the token behind it. hidden: the hidden states that the head takes beside them,
        [tokens, hidden]. Returns the hidden states for logits, and those for the next input, both [tokens, hidden].
        """
        tables = self._tables()[rows].copy()
        for table, skipped in zip(tables, (firsts // self.block_size).tolist(), strict=True):
            if skipped:
                table[:-skipped] = table[skipped:].copy()
        common, ids, positions, _ = pass_inputs(
            self.runner.device, tables, self.block_size, starts - firsts, counts, tokens, firsts
        )
        with in_pass(self.runner.vllm_config, self.attention, common):
            last, after = self.model(input_ids=ids, positions=positions, hidden_states=hidden, inputs_embeds=None)
        return last, after
