"""The way of a pass's tokens from the device to counts and drafter, and of drafts back to the next pass.

With asynchronous scheduling nothing waits for the tokens of a pass while it runs: vLLM plans the next pass and hands
out the tokens of the one before. When the next pass is to begin, there are three cases:

- The budget rests, so nobody drafts. The pass begins, and the drafter reads many passes together, later.
- The pass has no other requests than the one before. It is launched with as many drafted tokens as the budget chose in
  the last rounds; which ones the device decides once they are there (late_lengths.py).
- Else das waits for the tokens and drafts first.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from vllm.distributed import get_tp_group
from vllm.v1.outputs import DraftTokenIds

from das.drafter.thread import Arriving
from das.engine.proposer import DasProposer
from das.engine.requests import Pass, Requests
from das.engine.rollouts.meter import RolloutMeter
from das.engine.runner.late_lengths import LateLengths
from das.engine.runner.speculator import TextDrafts, filled_up
from das.verify.layout import Batch, Remembered, of_passes_alike

READ_TOGETHER = 64  # passes at rest; what the drafter learns from them comes so much later


@dataclass
class Flight:
    """A pass that was launched, or passes of the same requests without drafts as if they were one.

    batch: its requests; indices: theirs in vLLM's arrays, on the device. is_counted: whether it is known without the
    tokens how many each request emits: one, as it verifies no drafted tokens. unfinished: whether its prompt goes on.
    remembered: the distributions of its tokens, which are there when the tokens are. tokens: int64 [requests, 2 + most
    tokens], the numbers of emitted and of verified drafted tokens, and the tokens. ended: recorded when they are on the
    host; None on a CPU, where they are there at once. number: of the pass. passes_ended: when each pass ended, in
    seconds of time.perf_counter, once it has landed.
    """

    batch: Batch
    indices: torch.Tensor
    is_counted: bool
    unfinished: np.ndarray
    remembered: list[Remembered]
    tokens: torch.Tensor
    ended: torch.cuda.Event | None
    number: int = 0
    launched: float = field(default_factory=time.perf_counter)
    passes_ended: list[float] = field(default_factory=list)


def joined(flights: Sequence[Flight]) -> Flight:
    """Returns flights that have landed as one: passes of the same requests, each of which emitted one token a pass."""
    if len(flights) == 1:
        return flights[0]
    tokens = torch.stack([flight.tokens[:, 2] for flight in flights], dim=1)
    counts = torch.tensor([len(flights), 0]).expand(len(tokens), 2)
    return replace(
        flights[0],
        tokens=torch.cat((counts, tokens), dim=1),
        remembered=of_passes_alike([flight.remembered for flight in flights]),
        passes_ended=[ended for flight in flights for ended in flight.passes_ended],
    )


def _are_alike(one: Flight, other: Flight) -> bool:
    """Whether two flights that have landed can be joined."""
    alike = one.batch.requests == other.batch.requests and bool(one.remembered) == bool(other.remembered)
    return alike and all(flight.is_counted and bool((flight.tokens[:, 0] == 1).all()) for flight in (one, other))


class Flights:
    """The passes of an engine, from their launch to the drafts that follow them.

    vllm: its model runner. positions: the tokens of each response so far, by the indices of vLLM's arrays. requests:
    all that vLLM's runner knows. drafter: das's or one of vLLM's; None if nothing drafts on the host. It can be
    replaced. meter: of the running rollout. late: lets passes begin before their drafts are known; None: that is
    impossible. is_warming_up: whether vLLM runs made-up requests, so that kernels are compiled.
    """

    def __init__(self, vllm: Any, positions: np.ndarray):
        self.vllm, self.positions = vllm, positions
        self.drafter: DasProposer | TextDrafts | None = None
        self.meter = RolloutMeter()
        self.late: LateLengths | None = None
        self.is_warming_up = False
        self.rests = False  # whether nobody drafts for the running pass, nor reads it soon
        self.is_late = False  # whether the device alone knows how many drafted tokens it verifies for each request
        speculative = vllm.vllm_config.speculative_config
        longest = 0 if speculative is None else int(speculative.num_speculative_tokens)
        self.requests = Requests(longest, int(vllm.vllm_config.model_config.max_model_len))
        self._waiting: list[Flight] = []  # whose tokens the drafter does not know yet, the oldest first
        self._number = 0  # of the last pass
        self._arrived: tuple[torch.Tensor, torch.Tensor] | None = None  # see `take_off`
        self._last: tuple[torch.cuda.Event, float] | None = None  # the end of the last pass that landed, and its time

    @property
    def proposer(self) -> DasProposer | None:
        """The drafter if it is das's; None if nothing drafts, or if one of vLLM's own drafters does."""
        return self.drafter if isinstance(self.drafter, DasProposer) else None

    @property
    def draft_later(self) -> bool:
        """Whether drafting waits for the next pass: with asynchronous scheduling, if das drafts from texts."""
        return (
            self.vllm.scheduler_config.async_scheduling
            and self.proposer is not None
            and self.proposer.drafting_model is None
        )

    def take_off(
        self, output: Any, num_sampled: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Start to copy the tokens of a pass. output: vLLM's SamplerOutput. starts: where the rows of logits of each
        request begin, and their number. Returns Flight's `tokens` and `ended`. A GPU counts passes, too, and the number
        follows their tokens into the host's memory."""
        counts = torch.stack((num_sampled, starts.diff() - 1), dim=1)
        tokens = torch.cat((counts.to(torch.int64), output.sampled_token_ids), dim=1)
        if tokens.device.type != "cuda":
            return tokens.cpu(), None
        on_host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=True)
        stream = self.vllm.output_copy_stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            on_host.copy_(tokens, non_blocking=True)
            if self._arrived is None:
                there = torch.full((1,), self._number, dtype=torch.int64, device=tokens.device)
                self._arrived = there, torch.zeros(1, dtype=torch.int64, pin_memory=True)
            there, here = self._arrived
            there += 1
            here.copy_(there, non_blocking=True)
            ended = torch.cuda.Event(enable_timing=True)
            ended.record(stream)
        tokens.record_stream(stream)
        return on_host, ended

    def _land(self, flight: Flight) -> None:
        """Wait until the tokens of a pass are on the host, and note when the pass ended."""
        if flight.passes_ended:
            return
        if flight.ended is None:
            flight.passes_ended = [flight.launched]
            return
        flight.ended.synchronize()
        # By the device's clock: the host may look much later.
        now = time.perf_counter()
        if self._last is not None:
            now = min(now, self._last[1] + self._last[0].elapsed_time(flight.ended) / 1e3)
        self._last = flight.ended, now
        flight.passes_ended = [now]

    def add(self, flight: Flight) -> None:
        """Add a pass that was launched, and let the drafter's thread wait for its tokens."""
        self._number = flight.number = self._number + 1
        if flight.is_counted:
            self._grow(flight, ~flight.unfinished)
        if self.drafter is None:  # a model of vLLM's drafts now, and reads how long the texts are
            self.book(flight)
            return
        self._waiting.append(flight)
        alone = self.draft_later and len(self._waiting) == 1 and get_tp_group().world_size == 1
        if alone and not flight.unfinished.any() and len(flight.remembered) < 2 and not self.is_warming_up:
            assert self.proposer is not None
            kept = (flight.remembered[0].pairs, flight.remembered[0].num_drafted) if flight.remembered else None
            arrived = 0 if self._arrived is None else self._arrived[1].data_ptr()
            late = None if self.late is None else self.late.memory
            arriving = Arriving(flight.tokens.numpy(), kept, flight.number, arrived, late)
            self.proposer.draft_ahead(flight.batch.requests, arriving)

    def _grow(self, flight: Flight, num_emitted: np.ndarray) -> None:
        self.positions[flight.batch.rows] += num_emitted
        flight.batch.lengths += num_emitted

    def book(self, flight: Flight) -> Pass:
        """Wait for a flight's tokens, and count them. Returns what drafting hears of it."""
        self._land(flight)
        start, requests = time.perf_counter(), flight.batch.requests
        # vLLM has no more of a request that ended while the pass was planned.
        emitted = [
            [] if request.is_over else row[2 : 2 + row[0]]
            for request, row in zip(requests, flight.tokens.tolist(), strict=True)
        ]
        for request, new in zip(requests, emitted, strict=True):
            if new:
                request.output_token_ids += new
        if not flight.is_counted:
            self._grow(flight, flight.tokens[:, 0].numpy())
        counts, drafted = [len(new) // len(flight.passes_ended) for new in emitted], flight.tokens[:, 1].tolist()
        for ended in flight.passes_ended:
            self.meter.record_pass(requests, drafted, counts, ended)
        self.meter.draft_s += time.perf_counter() - start
        return Pass(requests, emitted, drafted, flight.passes_ended, flight.remembered)

    def _shortened(self, scheduled: Any) -> Any:
        """Returns the plan of a pass without the rows that nobody drafted. scheduled: vLLM's SchedulerOutput."""
        start, num_tokens = time.perf_counter(), scheduled.total_num_scheduled_tokens
        scheduled = self.requests.shortened(scheduled)
        self.meter.undrafted_rows += num_tokens - scheduled.total_num_scheduled_tokens
        self.meter.draft_s += time.perf_counter() - start
        return scheduled

    def execute(self, original: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a pass, which vLLM's runner does in `original`, execute_model. scheduled: vLLM's SchedulerOutput."""
        self.rests, self.is_late = self._may_rest(scheduled), False
        if self.rests:
            self._rest(scheduled)
        elif self._may_launch(scheduled):
            return self._launch(original, scheduled, *args, **kwargs)
        else:
            self.settle()
        # In vLLM's warm-up all requests draft the longest draft, so that the kernels for it are compiled.
        if not self.is_warming_up:
            scheduled = self._shortened(scheduled)
        return original(scheduled, *args, **kwargs)

    def _may_launch(self, scheduled: Any) -> bool:
        """Whether the pass that begins can be launched before the tokens of the one before are known: it has
        no others than that pass, and none has a grammar, which reads drafts."""
        if not self._waiting or self.is_warming_up or self.late is None:
            return False
        last = self._waiting[-1]
        names = scheduled.num_scheduled_tokens.keys()
        return bool(
            names
            and names <= {request.name for request in last.batch.requests}
            and not scheduled.scheduled_new_reqs
            and not scheduled.preempted_req_ids
            and not scheduled.has_structured_output_requests
            and not last.unfinished.any()
        )

    def _launch(self, original: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a pass, then draft for it while the device ends the pass before. A CPU drafts in between."""
        self._read_earlier()
        (last,), planned = self._waiting, sum(map(len, scheduled.scheduled_spec_decode_tokens.values()))
        assert self.proposer is not None
        assert self.late is not None
        self.meter.launched_ahead += 1
        self.requests.plan(last.batch.requests, [])
        live = len(scheduled.num_scheduled_tokens)
        total = min(planned, self.late.room(live), self.proposer.rows_ahead(live))
        self.is_late = total > 0 and scheduled.total_num_scheduled_tokens == live + planned
        if self.is_late:
            self.meter.undrafted_rows += planned - total
            places = {request.name: row for row, request in enumerate(last.batch.requests)}
            with self.late.deciding(total, last.number, last.indices, places):
                launched = original(scheduled, *args, **kwargs)
        else:
            launched = original(self._shortened(scheduled), *args, **kwargs)
        self.settle_late()
        return launched

    def settle_late(self) -> None:
        """Draft for the pass that was launched, unless that is done."""
        if not self._waiting:
            return
        (last,), self._waiting = self._waiting, []
        done, start = self.book(last), time.perf_counter()
        assert self.proposer is not None
        assert self.late is not None
        self.proposer.propose_late(done, last.number, self.late.memory)
        self.meter.draft_s += time.perf_counter() - start

    def _may_rest(self, scheduled: Any) -> bool:
        """Whether the pass that begins needs no token of the one before: nobody drafts, and nobody drafted before."""
        return (
            bool(self._waiting and scheduled.total_num_scheduled_tokens)
            and self._waiting[-1].is_counted
            and get_tp_group().world_size == 1  # ranks have the first one's drafts, and would have to ask it
            and self.proposer is not None
            and self.proposer.rests
        )

    def _rest(self, scheduled: Any) -> None:
        """Let the next pass begin before the tokens of the last one are there."""
        last, proposer = self._waiting[-1], self.proposer
        assert proposer is not None
        are_the_same = not (scheduled.finished_req_ids or scheduled.scheduled_new_reqs or scheduled.preempted_req_ids)
        if not are_the_same or len(self._waiting) > READ_TOGETHER:
            self._read_earlier()
        self.requests.plan(last.batch.requests, [])
        proposer.rest()

    def set_draft_tokens(self, input_batch: Any, draft_tokens: torch.Tensor) -> None:
        """Settle, unless drafting waits for the next pass. vLLM's runner calls it at the end of each pass, when the
        tokens of HostSpeculator lie where drafts belong."""
        if not self.draft_later:
            self.settle()

    def get_draft_tokens(self) -> DraftTokenIds:
        """Returns each request's draft, for vLLM's scheduler, which plans a row for each token of it, and no more."""
        drafted = self.requests.last
        return DraftTokenIds([each.name for each in drafted], [list(each.draft) for each in drafted])

    def settle(self) -> None:
        """Give the tokens of all passes that were launched to meter and drafter, which drafts for the next pass. Called
        before these are looked at or exchanged."""
        if not self._waiting:
            return
        self._read_earlier()
        (last,), self._waiting = self._waiting, []
        done, start, ranks = self.book(last), time.perf_counter(), get_tp_group()
        # On the first rank only: a budget that learns from times would choose other drafts on each rank.
        own = None
        if ranks.is_first_rank:
            assert self.drafter is not None
            own = self.drafter.propose(done)
        drafts: list[list[int]] = ranks.broadcast_object(own)
        self.requests.plan(done.requests, drafts)
        if any(drafts):
            there = filled_up(drafts, self.vllm.num_speculative_steps, self.vllm.device)
            self.vllm.req_states.draft_tokens[last.indices] = there
        self.meter.draft_s += time.perf_counter() - start

    def _read_earlier(self) -> None:
        """Give the drafter the tokens of all passes but the last one, after which nobody drafted. The next pass forgets
        requests that ended in one of them, so this comes first."""
        for flight in self._alike():
            done, start = self.book(flight), time.perf_counter()
            assert self.proposer is not None
            self.proposer.observe(done)
            self.meter.draft_s += time.perf_counter() - start

    def _alike(self) -> Iterator[Flight]:
        """Yields all passes but the last one, joined where that is possible, and forgets them."""
        earlier, self._waiting = self._waiting[:-1], self._waiting[-1:]
        together: list[Flight] = []
        for flight in earlier:
            self._land(flight)
            if together and not _are_alike(together[-1], flight):
                yield joined(together)
                together = []
            together.append(flight)
        if together:
            yield joined(together)
