"""The running batch, as verification and coupled drafts read it in either of vLLM's model runners."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class RunningBatch(Protocol):
    """A model runner's requests, and those of them that the running pass computes."""

    sampler: Any  # the KeyedSampler or ForcedSampler that verifies

    @property
    def requests(self) -> Mapping[str, Any]:
        """vLLM's CachedRequestState of each request that the runner knows, by request id."""

    @property
    def input_batch(self) -> Any:
        """vLLM's InputBatch: the requests of the pass, one in each row."""

    @property
    def unfinished(self) -> np.ndarray:
        """Whether the pass left part of the row's prompt to be computed, so that its token is discarded; bool [rows or
        more]."""
