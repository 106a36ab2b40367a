"""Drafts that reach the device after the pass that verifies them was launched.

The device runs `wait_for_drafts` ahead of such a pass. It waits in front of a number in pinned memory until the host
has written the drafts beside it, and copies them to where vLLM's kernels look. So the host prepares and launches a pass
while the device still computes the one before, and between two passes it only reads tokens and drafts.

Drafts decide no token, so a wait that ends in vain costs speed and nothing else. This module is imported only for CUDA.
"""

import logging

import numpy as np
import torch
import triton
import triton.language as tl

PATIENCE = 200_000  # looks at the host's memory, about a microsecond each, before the device goes on without drafts

_logger = logging.getLogger(__name__)


@triton.jit(do_not_specialize=["number", "count", "width", "stride"])
def wait_for_drafts(  # type: ignore[no-untyped-def]
    numbers, number, drafts, indices, out, count, width, stride, PATIENCE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Wait until numbers[0] is at least `number`, then copy drafts, [count, width], to the rows `indices` of out. One
    program. Sets numbers[1] to `number` if that was in vain."""
    written = tl.load(numbers, volatile=True)
    looks = 0
    while (written < number) & (looks < PATIENCE):
        written = tl.load(numbers, volatile=True)
        looks += 1
    if written < number:
        tl.store(numbers + 1, number)
    at = tl.arange(0, BLOCK)
    is_inside = at < count * width
    tokens = tl.load(drafts + at, mask=is_inside, other=0, volatile=True)
    rows = tl.load(indices + at // width, mask=is_inside, other=0)
    tl.store(out + rows * stride + at % width, tokens, mask=is_inside)


class LateDrafts:
    """Hands drafts to passes that were launched before. draft_tokens: vLLM's, int64 [requests, longest draft], on the
    device."""

    def __init__(self, draft_tokens: torch.Tensor):
        self._out = draft_tokens
        on_gpu = draft_tokens.is_cuda
        self._drafts = torch.zeros(draft_tokens.shape, dtype=torch.int64, pin_memory=on_gpu)
        self._numbers = torch.zeros(2, dtype=torch.int64, pin_memory=on_gpu)  # the last written; a missed one
        self._on_host, self._marks = self._drafts.numpy(), self._numbers.numpy()
        self._missed = 0
        self.expect(torch.zeros(0, dtype=torch.int64, device=draft_tokens.device), 0)  # compiled now, not amid passes

    @property
    def memory(self) -> tuple[np.ndarray, int]:
        """Where the drafter's thread writes drafts, and the address where it writes their number behind them."""
        return self._on_host, self._marks.ctypes.data

    def expect(self, indices: torch.Tensor, number: int) -> None:
        """Let the device wait for the drafts behind the pass of this number. indices: of the requests in draft_tokens,
        on the device."""
        width = self._out.shape[1]
        wait_for_drafts[(1,)](
            self._numbers, number, self._drafts, indices, self._out, len(indices), width, self._out.stride(0),
            PATIENCE=PATIENCE, BLOCK=triton.next_power_of_2(self._out.numel()),
        )  # fmt: skip

    def write(self, drafts: np.ndarray, number: int) -> None:
        """Hand out the drafts of the requests that `expect` named, int64 [requests, longest draft], unless the
        drafter's thread has done so."""
        if self._marks[0] < number:
            self._on_host[: len(drafts)] = drafts
            self._marks[0] = number
        if self._marks[1] > self._missed:
            self._missed = int(self._marks[1])
            _logger.warning("das: the device waited for a draft in vain; its pass verified others (harmless, but slow)")
