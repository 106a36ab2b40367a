"""Data sheets of GPUs, and shapes of language models: bytes and operations of a pass."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from das.budget.latency import Array


@dataclass(frozen=True)
class Gpu:
    """A GPU's speeds and memory, from its data sheet, and the share of its operations that matrix products reach.

    knee: how sharply a pass turns from reading weights into computing, see GpuTimes.
    """

    bandwidth: float  # bytes per second
    flops: float  # dense bf16 operations per second
    memory: float  # bytes
    products: float = 0.63  # one H200, 8B: 320 to 576 rows of 64 requests
    knee: float = 4.0  # the same, 80 and 144 rows


GPUS = {
    # NVIDIA's data sheets of the SXM modules. Dense bf16 is half of the figure "with sparsity". The A100's share is
    # EfficientRollout's F_eff, 233.5 of 312 TFLOPS. Its knee is that of the paper's published sweep: passes of 1 to
    # 1,024 rows at 256 tokens, of three models, are met within 5.5 % on average. An H100 has the H200's processors; a
    # B200 is taken to be alike.
    "A100": Gpu(2.039e12, 312e12, 80e9, products=0.748, knee=1.6),
    "H100": Gpu(3.35e12, 989e12, 80e9),
    "H200": Gpu(4.8e12, 989e12, 141e9),
    "B200": Gpu(8.0e12, 2250e12, 180e9),
}


@dataclass(frozen=True)
class Model:
    """The shape of a language model, from its config.json: a decoder with grouped-query attention and gated
    feed-forward layers."""

    layers: int
    hidden: int
    inner: int  # width of the feed-forward layer, or of one expert
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False  # whether embedding and head are one matrix
    experts: int = 1
    active: int = 1  # number of experts that a token uses
    head_size: int = 128

    @property
    def attention_weights(self) -> float:
        """The parameters of attention in all layers."""
        return 2.0 * self.layers * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def expert_weights(self) -> float:
        """The parameters of one expert, or of the feed-forward layer, in all layers."""
        return 3.0 * self.layers * self.hidden * self.inner

    @property
    def parameters(self) -> float:
        """The parameters that lie in memory."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return self.attention_weights + self.expert_weights * self.experts + embeddings

    def read(self, rows: Array, gpus: int = 1) -> Array:
        """Return the parameters that a pass of so many rows reads: an expert if a row chose it, at random, and of the
        embedding a few rows only. Experts lie on `gpus` GPUs, and the pass waits for the one that reads most."""
        share = 1 - (1 - self.active / self.experts) ** np.asarray(rows, np.float64)  # of the experts that are chosen
        each = self.experts / gpus
        above = NormalDist().inv_cdf((gpus - 0.375) / (gpus + 0.25))  # expected maximum, in standard deviations (Blom)
        busiest = np.minimum(each, each * share + above * np.sqrt(each * share * (1 - share)))
        experts = gpus * busiest if self.experts > 1 else np.ones_like(share)
        return self.attention_weights + self.expert_weights * experts + self.vocabulary * self.hidden

    @property
    def flop(self) -> float:
        """The floating-point operations that a pass computes for each row, without attention to the context."""
        return 2 * (self.attention_weights + self.expert_weights * self.active + self.vocabulary * self.hidden)

    @property
    def attention_flop(self) -> float:
        """The floating-point operations of attention for each pair of a row of the pass and a token of its context."""
        return 4.0 * self.layers * self.heads * self.head_size

    @property
    def kv_bytes(self) -> float:
        """The bytes of keys and values (bf16) that are stored for each token."""
        return 4.0 * self.layers * self.kv_heads * self.head_size


MODELS = {
    # From the config.json of the models on the Hugging Face hub.
    "1.5B": Model(28, 1536, 8960, 12, 2, 151936, tied=True),  # Qwen2.5-1.5B; R1-Distill-Qwen-1.5B is untied
    "7B": Model(28, 3584, 18944, 28, 4, 152064),  # Qwen2.5-7B, R1-Distill-Qwen-7B
    "8B": Model(36, 4096, 12288, 32, 8, 151936),  # Qwen3-8B
    "14B": Model(48, 5120, 13824, 40, 8, 152064),  # Qwen2.5-14B
    "32B": Model(64, 5120, 25600, 64, 8, 151936),  # Qwen3-32B
    "235B": Model(94, 4096, 1536, 64, 4, 151936, experts=128, active=8),  # Qwen3-235B-A22B
}
