"""Roofline model of self-drafting, in which a cheaper copy of the target drafts (EfficientRollout, arXiv 2606.18967).

M_T = (W_T + kappa B S) / BW     M_D = (eta_D W_D + kappa B S) / BW     C = B (C_dense + S C_attn) / F_eff
T_T = max(M_T, C) + c_T B        T_D = max(M_D, C) + c_D B              T_V = max(M_T, (gamma + 1) C) + c_V B

Each of B requests has S tokens of context and gamma drafted tokens. A decode step without drafts takes T_T. A cycle
of gamma draft passes and one verification takes gamma T_D + T_V.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class PassWork:
    """The bytes that a pass reads and the operations that it computes. Both numbers are known without measuring."""

    target_bytes: float  # W_T: weights read by a target pass
    draft_bytes: float  # W_D: weights read by a draft pass
    dense_flop: float  # C_dense: per token
    attention_flop: float  # C_attn: per token and token of its context
    flops: float  # F_eff: floating-point operations per second that the device reaches


@dataclass(frozen=True)
class SelfDraftRoofline:
    """Predicts times in seconds, with six fitted constants. Arrays B and S broadcast."""

    work: PassWork
    bandwidth: float  # BW: bytes per second
    kv_bytes: float  # kappa: bytes per token of context
    draft_factor: float  # eta_D: slowdown of reading the draft's weights, relative to their bytes
    c_target: float  # c_T: seconds per request in a target pass
    c_draft: float  # c_D: seconds per request in a draft pass
    c_verify: float  # c_V: seconds per request in a verification

    def _memory(self, weights: float, B: Array, S: Array) -> Array:
        return (weights + self.kv_bytes * B * S) / self.bandwidth

    def _compute(self, B: Array, S: Array) -> Array:
        return B * (self.work.dense_flop + S * self.work.attention_flop) / self.work.flops

    def target(self, B: Array, S: Array) -> Array:
        """Return T_T, the seconds of a decode step without drafts. B: requests. S: tokens of context of each."""
        return np.maximum(self._memory(self.work.target_bytes, B, S), self._compute(B, S)) + self.c_target * B

    def draft(self, B: Array, S: Array) -> Array:
        """Return T_D, the seconds of one pass of the copy that drafts. B: requests. S: tokens of context of each."""
        weights = self.draft_factor * self.work.draft_bytes
        return np.maximum(self._memory(weights, B, S), self._compute(B, S)) + self.c_draft * B

    def verify(self, B: Array, S: Array, gamma: Array) -> Array:
        """Return T_V, the seconds to verify gamma drafted tokens of each of B requests with S tokens of context."""
        memory = self._memory(self.work.target_bytes, B, S)
        return np.maximum(memory, (gamma + 1) * self._compute(B, S)) + self.c_verify * B
