"""Derive times of passes on GPUs that this project has not measured, by the roofline of roofline.py and public
constants.

The published A100 calibrations (EfficientRollout, arXiv 2606.18967) give the share of its data sheet that a GPU
reaches, and the time that a request adds to a pass. Both are means over the paper's three models, and are assumed to
hold for other GPUs.
"""

from dataclasses import dataclass, replace

import numpy as np

from das.budget.latency import Array


@dataclass(frozen=True)
class Gpu:
    """Speeds and memory of a GPU, from its data sheet."""

    bandwidth: float  # bytes per second
    flops: float  # dense bf16 operations per second
    memory: float  # bytes


GPUS = {
    # NVIDIA's data sheets of the SXM modules. Dense bf16 is half of the figure "with sparsity".
    "A100": Gpu(2.039e12, 312e12, 80e9),
    "H100": Gpu(3.35e12, 989e12, 80e9),
    "H200": Gpu(4.8e12, 989e12, 141e9),
    "B200": Gpu(8.0e12, 2250e12, 180e9),
}

# Shares that an A100-80GB reaches. Each constant is the mean over Qwen2.5-7B, Llama-3.1-8B and Qwen2.5-14B. Published
# values, in the paper's symbols: BW 1.617, 1.566, 1.564 of 2.039 TB/s; F_eff 233.5 of 312 TFLOPS; kappa .46, .19, .24
# of its bytes; c_T 39, 74, 50 us; c_V 152, 214, 232 us; c_D 69, 86, 154 us.
BANDWIDTH_SHARE = 0.776
FLOPS_SHARE = 0.748
KV_SHARE = 0.30
TARGET_REQUEST = 54e-6  # seconds that a live request adds to a pass


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
    def _attention(self) -> float:
        return 2.0 * self.layers * self.hidden * self.head_size * (self.heads + self.kv_heads)

    @property
    def _expert(self) -> float:
        return 3.0 * self.layers * self.hidden * self.inner

    def weight_bytes(self, tokens: Array) -> Array:
        """Return the bytes of weights (bf16) that a pass of `tokens` tokens reads. It reads an expert if a token chose
        that expert."""
        chosen = self.experts * (1 - (1 - self.active / self.experts) ** np.asarray(tokens)) if self.experts > 1 else 1
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return 2 * (self._attention + self._expert * np.asarray(chosen, np.float64) + embeddings)

    @property
    def flop(self) -> float:
        """The floating-point operations that a pass computes for each token, without attention to the context."""
        return 2 * (self._attention + self._expert * self.active + self.vocabulary * self.hidden)

    @property
    def attention_flop(self) -> float:
        """The floating-point operations of attention for each pair of a token of the pass and a token of its
        context."""
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


@dataclass(frozen=True)
class Derived:
    """A latency form (experiments.simulate.times.Form): EfficientRollout's T_T, with drafted tokens counted as well."""

    gpu: Gpu
    model: Model
    gpus: int = 1  # in tensor parallel; communication is left out, so times for several GPUs are too short
    weights: float = 1.0  # bytes of weights as a share of bf16's: a self-draft reads fewer
    request: float = TARGET_REQUEST  # seconds that a live request adds

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        live, tokens, context = (np.asarray(value, np.float64) for value in (live, tokens, context))
        bytes_read = self.weights * self.model.weight_bytes(tokens) + KV_SHARE * self.model.kv_bytes * context
        memory_s = bytes_read / (self.gpu.bandwidth * BANDWIDTH_SHARE * self.gpus)
        attention_flop = self.model.attention_flop * context * tokens / np.maximum(live, 1)
        compute_s = (self.model.flop * tokens + attention_flop) / (self.gpu.flops * FLOPS_SHARE * self.gpus)
        return np.maximum(memory_s, compute_s) + self.request * live


@dataclass(frozen=True)
class Rest:
    """What a pass takes beside the roofline: the host's work for which the device waits, and the sampler. In seconds,
    of each pass and of each live request."""

    each: float
    request: float


# Measured on one H200 with an 8B shape (docs/benchmarks.md#on-one-h200) at 1, 16, 64 and 256 live requests, less the
# roofline: vLLM as it comes; das in passes without drafts; in passes with 4 or 8 drafted tokens a request. The host's
# part is assumed to be as long beside other GPUs and policies.
STOCK, UNDRAFTED, DRAFTED = Rest(1.05e-3, 32e-6), Rest(1.05e-3, 41e-6), Rest(2.0e-3, 70e-6)


@dataclass(frozen=True)
class WithHost:
    """A latency form: the roofline's time of a pass, and the rest beside it. undrafted: the rest without drafts."""

    roofline: Derived
    undrafted: Rest = UNDRAFTED

    def predict(self, live: Array, tokens: Array, context: Array) -> Array:
        live, tokens = np.asarray(live, np.float64), np.asarray(tokens, np.float64)
        plain, drafted = (rest.each + rest.request * live for rest in (self.undrafted, DRAFTED))
        device = replace(self.roofline, request=0.0).predict(live, tokens, context)
        return device + np.where(tokens > live, drafted, plain)


def derived(gpu: str, model: str) -> Derived:
    """Return the form for a model on GPUs: the fewest (1, 2, 4 ...) with a memory of at least 1.5 times the weights.

    Raises ValueError if GPUS or MODELS lacks the name.
    """
    if gpu not in GPUS:
        raise ValueError(f"unknown GPU {gpu!r}: choose one of {', '.join(GPUS)}, or give task.latency=PATH (measured)")
    if model not in MODELS:
        raise ValueError(
            f"unknown model size {model!r}: choose one of {', '.join(MODELS)}, or give task.latency=PATH (measured)"
        )
    all_weights = float(MODELS[model].weight_bytes(np.array(1e9)))  # bytes; 1e9 tokens choose every expert
    gpus = 1
    while all_weights > GPUS[gpu].memory * gpus * 2 / 3:
        gpus *= 2
    return Derived(GPUS[gpu], MODELS[model], gpus)
