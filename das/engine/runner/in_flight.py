"""Passes whose tokens are on their way from the device to the host, and passes that begin meanwhile.

With asynchronous scheduling nothing waits for the tokens of a pass while it runs: vLLM plans the next pass and hands
out the tokens of the one before. When the next pass is to begin, there are three cases:

- The budget rests, so nobody drafts. The pass begins, and the drafter reads many passes together, later.
- The pass has the requests of the one before. It is launched with as many drafted tokens as the drafter planned a pass
  ago, and the drafts follow (late_drafts.py).
- Else das waits for the tokens and drafts first.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.distributed import get_tp_group
from vllm.platforms import current_platform

from das.engine.runner.requests import Batch
from das.engine.runner.speculator import padded
from das.verify.sampler import Remembered, of_passes_alike

if TYPE_CHECKING:
    from das.engine.runner.late_drafts import LateDrafts
    from das.engine.runner.runner import Runner

READ_TOGETHER = 64  # passes at rest; what the drafter learns from them comes so much later


@dataclass
class Flight:
    """A pass that was launched, or passes of the same requests without drafts as if they were one.

    batch: its requests; rows: their indices in vLLM's arrays, on the host and (indices) on the device. num_drafted: the
    drafted tokens of each. unfinished: whether its prompt goes on. remembered: the distributions of its tokens, which
    are there when the tokens are. tokens: int64 [requests, 1 + most tokens], the number of emitted tokens and the
    tokens. ended: recorded when they are on the host; None on a CPU, where they are there at once. passes_ended: when
    each pass ended, in seconds of time.perf_counter, once it has landed.
    """

    batch: Batch
    rows: np.ndarray
    indices: torch.Tensor
    num_drafted: list[int]
    unfinished: np.ndarray
    remembered: list[Remembered]
    tokens: torch.Tensor
    ended: torch.cuda.Event | None
    launched: float = field(default_factory=time.perf_counter)
    passes_ended: list[float] = field(default_factory=list)

    @property
    def is_counted(self) -> bool:
        """Whether it is known without the tokens how many each request emits: one, if it drafted none."""
        return not any(self.num_drafted)


def joined(flights: Sequence[Flight]) -> Flight:
    """Returns flights that have landed as one: passes of the same requests, each of which emitted one token a pass."""
    if len(flights) == 1:
        return flights[0]
    tokens = torch.stack([flight.tokens[:, 1] for flight in flights], dim=1)
    counts = torch.full((len(tokens), 1), len(flights), dtype=tokens.dtype)
    return replace(
        flights[0],
        tokens=torch.cat((counts, tokens), dim=1),
        remembered=of_passes_alike([flight.remembered for flight in flights]),
        passes_ended=[ended for flight in flights for ended in flight.passes_ended],
    )


def _are_alike(one: Flight, other: Flight) -> bool:
    """Whether two flights that have landed can be joined."""
    alike = one.batch.req_ids == other.batch.req_ids and bool(one.remembered) == bool(other.remembered)
    return alike and all(flight.is_counted and bool((flight.tokens[:, 0] == 1).all()) for flight in (one, other))


class Flights:
    """The passes of a runner whose tokens the drafter does not know yet. late: hands drafts to passes that were
    launched before, on a GPU where that is possible."""

    def __init__(self, runner: "Runner"):
        self.late: LateDrafts | None = None
        self._runner = runner
        self.rests = False  # whether nobody drafts for the running pass, nor reads it soon
        self._waiting: list[Flight] = []  # the oldest first
        self._last: tuple[torch.cuda.Event, float] | None = None  # the end of the last pass that landed, and its time

    def take_off(self, output: Any, num_sampled: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Start to copy the tokens of a pass. output: vLLM's SamplerOutput. Returns Flight's `tokens` and `ended`."""
        tokens = torch.cat((num_sampled[:, None].to(torch.int64), output.sampled_token_ids), dim=1)
        if tokens.device.type != "cuda":
            return tokens.cpu(), None
        on_host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=True)
        stream = self._runner.vllm.output_copy_stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            on_host.copy_(tokens, non_blocking=True)
            ended = torch.cuda.Event(enable_timing=True)
            ended.record(stream)
        tokens.record_stream(stream)
        return on_host, ended

    def land(self, flight: Flight) -> None:
        """Wait until the tokens of a pass are on the host, and note when the pass ended."""
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
        """Add a pass that was launched."""
        self._waiting.append(flight)

    def execute(self, original: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a pass, which vLLM's runner does in `original`, execute_model. scheduled: vLLM's SchedulerOutput."""
        runner, self.rests = self._runner, self._may_rest(scheduled)
        if self.rests:
            self._rest(scheduled)
        elif self._may_launch(scheduled):
            return self._launch(original, scheduled, *args, **kwargs)
        else:
            self.settle()
        # In vLLM's warm-up all requests draft the longest draft, so that the kernels for it are compiled.
        if not runner.is_warming_up:
            scheduled = runner.shortened(scheduled)
        return original(scheduled, *args, **kwargs)

    def _may_launch(self, scheduled: Any) -> bool:
        """Whether the pass that begins can be launched before the tokens of the one before are known: its requests are
        those of that pass, and none has a grammar, which reads drafts."""
        if not self._waiting or self._runner.is_warming_up or not self._runner.drafts_later:
            return False
        if self.late is None and not current_platform.is_cpu():
            return False
        last = self._waiting[-1]
        names = scheduled.num_scheduled_tokens.keys()
        return bool(
            names
            and get_tp_group().world_size == 1  # see `_may_rest`
            and names <= set(last.batch.req_ids)
            and not scheduled.scheduled_new_reqs
            and not scheduled.preempted_req_ids
            and not scheduled.has_structured_output_requests
            and not last.unfinished.any()
        )

    def _launch(self, original: Callable[..., Any], scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        """Launch a pass, then draft for it while the device ends the pass before."""
        runner = self._runner
        self._read_earlier()
        (last,) = self._waiting
        runner.meter.launched_ahead += 1
        scheduled = runner.shortened(scheduled, runner.drafter.planned_rows())
        drafted = scheduled.scheduled_spec_decode_tokens
        planned = {name: len(drafted.get(name, ())) for name in last.batch.req_ids}
        if current_platform.is_cpu():  # computes the pass when it is launched
            self.settle(planned)
            return original(scheduled, *args, **kwargs)
        late = self.late if any(planned.values()) else None
        if late is not None:
            late.expect(last.indices)
        launched = original(scheduled, *args, **kwargs)
        self.settle(planned, late)
        return launched

    def _may_rest(self, scheduled: Any) -> bool:
        """Whether the pass that begins needs no token of the one before: nobody drafts, and nobody drafted before."""
        return (
            bool(self._waiting and scheduled.total_num_scheduled_tokens)
            and self._waiting[-1].is_counted
            and get_tp_group().world_size == 1  # ranks have the first one's drafts, and would have to ask it
            and bool(self._runner.drafter.rests)
        )

    def _rest(self, scheduled: Any) -> None:
        """Let the next pass begin before the tokens of the last one are there."""
        last = self._waiting[-1]
        are_the_same = not (scheduled.finished_req_ids or scheduled.scheduled_new_reqs or scheduled.preempted_req_ids)
        if not are_the_same or len(self._waiting) > READ_TOGETHER:
            self._read_earlier()
        self._runner.nobody_drafts(last.batch.req_ids)
        self._runner.drafter.rest()

    def settle(self, planned: Mapping[str, int] | None = None, late: "LateDrafts | None" = None) -> None:
        """Give the tokens of all passes that were launched to meter and drafter, which drafts for the next pass. Called
        before these are looked at or exchanged.

        planned: see Runner.draft. late: waits for the drafts; None: nothing does."""
        if not self._waiting:
            return
        self._read_earlier()
        (last,), self._waiting = self._waiting, []
        self.land(last)
        self._runner.book(last)
        drafts = self._runner.draft(planned)
        if late is not None:
            late.write(padded(drafts, self._runner.vllm.num_speculative_steps))
        elif any(drafts):
            self._runner.vllm.req_states.draft_tokens[last.indices] = self._runner.on_device(drafts)

    def _read_earlier(self) -> None:
        """Give the drafter the tokens of all passes but the last one, after which nobody drafted. The next pass forgets
        requests that ended in one of them, so this comes first."""
        runner = self._runner
        for flight in self._alike():
            runner.book(flight)
            start = time.perf_counter()
            runner.drafter.attach(runner)
            runner.drafter.observe(runner.emitted)
            runner.meter.draft_s += time.perf_counter() - start

    def _alike(self) -> Iterator[Flight]:
        """Yields all passes but the last one, joined where that is possible, and forgets them."""
        earlier, self._waiting = self._waiting[:-1], self._waiting[-1:]
        together: list[Flight] = []
        for flight in earlier:
            self.land(flight)
            if together and not _are_alike(together[-1], flight):
                yield joined(together)
                together = []
            together.append(flight)
        if together:
            yield joined(together)
