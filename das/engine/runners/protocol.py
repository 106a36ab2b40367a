"""The interface of a model runner of vLLM with das in it. vLLM has two model runners; the code for each lies in a
folder beside this file."""

from typing import Any, Protocol

import numpy as np

from das.engine.drafters.quantized_layers import QuantizedLayers
from das.engine.rollouts.meter import RolloutMeter
from das.verify.batch import RunningBatch
from das.verify.coupled import CoupledSampler


class Runner(RunningBatch, Protocol):
    """One of vLLM's model runners with das in it: it verifies with keyed noise, makes drafts, and counts passes and
    tokens."""

    vllm: Any  # vLLM's own runner
    meter: RolloutMeter  # of the running rollout
    weights_version: int  # version of the policy's weights: it grows with every sync
    quantized: QuantizedLayers | None  # the quantized layers with which the policy drafts for itself; None: it does not
    draft_blocks: range  # KV blocks into which draft passes of the policy write
    is_warming_up: bool  # whether vLLM runs made-up requests, so that kernels are compiled
    pass_ended: float | None  # when the pass whose tokens the drafter gets ended, in seconds; None: just now

    def settle(self) -> None:
        """Give the tokens of all passes that were launched to meter and drafter. Called before these are looked at or
        exchanged."""

    @property
    def coupled(self) -> CoupledSampler | None:
        """The sampler of coupled drafts (drawn with the verifier's noise) if one of vLLM's own drafters runs a model;
        else None."""

    @property
    def drafter(self) -> Any:
        """The proposer that drafts: das's or one of vLLM's; None if nothing drafts. It can be replaced by another."""

    @drafter.setter
    def drafter(self, drafter: Any) -> None: ...

    def verify_branches(self, scratch: range) -> None:
        """From now on, verify branching drafts as trees. scratch: KV blocks for branches, which vLLM's scheduler does
        not know of. Raises NotInstalled if branching drafts were not checked in such an engine.
        """

    def draft_passes(self, max_tokens: int) -> Any:
        """Make the object with which the policy drafts for itself: it runs draft passes (runners/draft_passes.py).

        max_tokens: the most positions that these passes compute for a request between two target passes.
        """

    def block_tables(self) -> np.ndarray:
        """Returns the KV blocks of each request of the batch, int32 [requests or more, blocks], on the host."""

    def texts(self) -> np.ndarray:
        """Returns the token ids of each request of the batch, prompt and response, int32 [requests or more,
        max_model_len], on the host."""
