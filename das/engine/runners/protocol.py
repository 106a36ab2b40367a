"""The boundary around vLLM's two model runners. Code that depends on one of them lies in a folder beside this file."""

from typing import Any, Protocol

from das.engine.drafters.quantized_layers import QuantizedLayers
from das.engine.rollouts.meter import RolloutMeter
from das.verify.batch import RunningBatch
from das.verify.coupled import CoupledSampler


class Runner(RunningBatch, Protocol):
    """One of vLLM's model runners. It verifies by keyed noise, drafts as das says, and counts both."""

    vllm: Any  # vLLM's own runner
    meter: RolloutMeter  # of the running rollout
    has_head: bool  # whether a draft head and the history take turns (das_eagle3)
    weights_version: int  # of the policy: it grows with every sync
    quantized: QuantizedLayers | None  # the layers of self-drafts
    draft_blocks: range  # KV blocks that self-drafts write into

    @property
    def coupled(self) -> CoupledSampler | None:
        """The sampler of a drafter of vLLM's own that runs a model; None for other drafters."""

    @property
    def drafter(self) -> Any:
        """The proposer that drafts, of das or of vLLM; None if nothing drafts. It can be exchanged."""

    @drafter.setter
    def drafter(self, drafter: Any) -> None: ...

    def verify_branches(self, scratch: range) -> None:
        """Verify drafts that branch. scratch: KV blocks that the scheduler does not know of. Raises NotInstalled where
        that was not checked.
        """

    def draft_passes(self, max_tokens: int) -> Any:
        """Passes of the policy that self-drafts run (runners/first/draft_passes.py).

        max_tokens: positions that they compute for a request between two target passes, at most.
        """

    def head_passes(self) -> Any:
        """Passes of the draft head that vLLM loaded (runners/first/head_passes.py)."""
