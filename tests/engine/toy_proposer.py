"""The one file of a toy method (test_methods.py): it drafts each request's last token twice.

vLLM's own ngram would import numba, after which no engine can be built in the same process (docs/trl.md).
"""

from typing import Any

import numpy as np


class ToyProposer:
    """A custom proposer as vLLM builds it."""

    def __init__(self, vllm_config: Any):
        pass

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def propose(
        self, sampled: list[list[int]], num_tokens: np.ndarray, tokens: np.ndarray, slot_mappings: Any = None
    ) -> list[list[int]]:
        """Drafts for the rows that emitted."""
        return [[own[-1]] * 2 if own else [] for own in sampled]
