"""What takes the place of vLLM's speculator where das drafts, on the host."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from das.verify.host_copies import on_device


class HostSpeculator(BaseSpeculator):
    """Lets Runner draft after each pass. vLLM builds it before Runner exists, which sets `das_runner`."""

    supports_mm_inputs = False
    draft_logits = None
    das_runner: Any = None

    def __init__(self, vllm_config: Any, device: torch.device):
        self.longest, self.device = vllm_config.speculative_config.num_speculative_tokens, device
        shape = vllm_config.scheduler_config.max_num_seqs, self.longest
        self._none = torch.zeros(shape, dtype=torch.int64, device=device)

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Do nothing: nothing of a drafter on the host can be captured."""

    def capture(self) -> None:
        """Do nothing, for the same reason."""

    def propose(self, input_batch: Any, *args: Any, dummy_run: bool = False, **kwargs: Any) -> torch.Tensor:
        """Returns the drafted token ids of each request of the pass (filled_up); zeros if they come later
        (`settle`)."""
        if dummy_run or self.das_runner.drafts_later:
            return self._none[: input_batch.num_reqs]
        drafts = self.das_runner.draft()
        return filled_up(drafts, self.longest, self.device)


def filled_up(drafts: Sequence[Sequence[int]], longest: int, device: torch.device) -> torch.Tensor:
    """Returns drafts as vLLM takes them: int64 [requests, longest], filled up with 0. How many tokens count is what
    TrueLengths says."""
    padded = np.zeros((len(drafts), longest), np.int32)
    is_drafted = np.arange(longest) < np.fromiter(map(len, drafts), np.int64, len(drafts))[:, None]
    padded[is_drafted] = np.fromiter(chain.from_iterable(drafts), np.int32)
    return on_device(device, {"drafts": padded})["drafts"].to(torch.int64)


class TrueLengths:
    """Takes the place of vLLM's DraftTokensHandler, which tells the scheduler that every request drafted as many tokens
    as possible. The scheduler then plans a row for each drafted token, and no more."""

    def __init__(self) -> None:
        self.drafts: dict[str, list[int]] = {}  # by request, of the last pass

    def set_draft_tokens(self, input_batch: Any, draft_tokens: torch.Tensor) -> None:
        """Do nothing: Runner sets `drafts`."""

    def get_draft_tokens(self) -> DraftTokenIds:
        """Returns each request's draft, for vLLM's scheduler."""
        return DraftTokenIds(list(self.drafts), [list(draft) for draft in self.drafts.values()])
