"""The interface by which verification and coupled drafts read the running batch of either of vLLM's model runners."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class RunningBatch(Protocol):
    """The part of a model runner that verification needs: its requests, and the requests of the running pass."""

    sampler: Any  # the KeyedSampler or ForcedSampler that verifies

    @property
    def requests(self) -> Mapping[str, Any]:
        """vLLM's CachedRequestState of each request that the runner knows, by request id."""

    @property
    def input_batch(self) -> Any:
        """vLLM's InputBatch: the requests of the pass, one in each row."""

    @property
    def unfinished(self) -> np.ndarray:
        """True for each row whose prompt is unfinished after the pass, so that its sampled token is discarded; bool
        [rows or more]."""
