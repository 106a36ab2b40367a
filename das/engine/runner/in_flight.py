"""The tokens of a pass on their way from the device to the host.

With asynchronous scheduling nothing waits for them while the pass runs: vLLM plans the next pass and hands out the
tokens of the one before. Just before the next pass is launched, Runner waits for them and drafts, or does not
even wait if the budget rests.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from das.engine.runner.requests import Batch
from das.verify.sampler import Remembered


@dataclass
class InFlight:
    """A pass that was launched.

    batch: its requests; rows: their indices in vLLM's arrays, on the host and (indices) on the device. num_drafted: the
    drafted tokens of each. unfinished: whether its prompt goes on. remembered: the distributions of its tokens, which
    are there when the tokens are. tokens: int64 [requests, 1 + most tokens], the number of emitted tokens and the
    tokens. ended: recorded when they are on the host; None on a CPU, where they are there at once.
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

    @property
    def is_counted(self) -> bool:
        """Whether it is known without the tokens how many each request emits: one, if it drafted none."""
        return not any(self.num_drafted)


class Landing:
    """Starts copies of emitted tokens to the host, and tells when passes ended. stream: for the copies."""

    def __init__(self, stream: Any):
        self._stream = stream
        self._last: tuple[torch.cuda.Event, float] | None = None  # the end of the last pass that landed, and its time

    def take_off(self, output: Any, num_sampled: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event | None]:
        """Start to copy the tokens of a pass. output: vLLM's SamplerOutput. Returns InFlight's `tokens` and `ended`."""
        tokens = torch.cat((num_sampled[:, None].to(torch.int64), output.sampled_token_ids), dim=1)
        if tokens.device.type != "cuda":
            return tokens.cpu(), None
        on_host = torch.empty(tokens.shape, dtype=torch.int64, pin_memory=True)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            on_host.copy_(tokens, non_blocking=True)
            ended = torch.cuda.Event(enable_timing=True)
            ended.record(self._stream)
        tokens.record_stream(self._stream)
        return on_host, ended

    def land(self, flight: InFlight) -> float:
        """Wait until the tokens are on the host. Returns when the pass ended, in seconds of time.perf_counter."""
        if flight.ended is None:
            return flight.launched
        flight.ended.synchronize()
        # By the device's clock: the host may look much later.
        now = time.perf_counter()
        if self._last is not None:
            now = min(now, self._last[1] + self._last[0].elapsed_time(flight.ended) / 1e3)
        self._last = flight.ended, now
        return now
