"""The interface by which verification and coupled drafts read the running batch of vLLM's model runner."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch


class RunningBatch(Protocol):
    """The part of a model runner that verification needs: its requests, and the requests of the running pass."""

    input_batch: Any  # the requests of the pass, one in each row (das.engine.runner.requests.Batch)
    # True for each row whose prompt is unfinished after the pass, so that its sampled token is discarded; bool [rows]
    unfinished: np.ndarray

    @property
    def requests(self) -> Mapping[str, Any]:
        """Each request that the runner knows, by request id (das.engine.runner.requests.KnownRequest)."""

    def seeds_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the seeds of some rows of the batch, for drafters that are models. Both arrays int64 [rows]."""

    def processed(self, logits: torch.Tensor, rows: np.ndarray, num_drafted: np.ndarray) -> torch.Tensor:
        """Returns logits of a drafter after each request's sampling parameters were applied, as they are to the
        verifier's. logits: float32 [rows, vocab], changed in place. rows: of the batch, int64 [rows]. num_drafted:
        tokens that are drafted before each, int64 [rows]."""
