"""The time of a pass of vLLM on a GPU, with das or without it, by physics.

    a pass    wait + max(device, host)
    device    products + attention + sampler + gaps
    products  reading the weights or computing, whichever takes longer, with a knee between them

Matrix products read weights while they compute. Attention and the small kernels run behind them, so the keys and values
of the context come on top, however few rows there are. The host prepares, launches and hands out passes while the
device computes. Only the wait for drafts is in series with both.

Each constant says what it is, and which measurements it follows from. `python -m experiments.simulate.against_h200`
prints the passes that one H200 took beside those computed here; docs/benchmarks.md keeps its tables.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from das.budget.latency import Array
from experiments.run.errors import UserError
from experiments.simulate.times import PassWork


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


# ---- the device ----
# Passes of one request read weights and do little else: 9.53, 10.23 and 18.55 ms for Qwen2.5-7B, Llama-3.1-8B and
# Qwen2.5-14B on an A100 (the published sweep of EfficientRollout), 5.54 ms for an 8B on one H200. Bytes and layers of
# these four differ, so both constants follow; each of the four is met within .5 %.
WEIGHTS = 0.85  # share of the memory's bandwidth at which weights are read
LAYER = 47e-6  # seconds a layer in which the device runs empty: some 13 kernels of a CUDA graph start and end
# One H200, 1, 16, 64 and 256 requests of 1,024 tokens each, no drafts: 42 ns for a token's 147,456 bytes. (The
# published A100 sweep cannot say it: its requests shared their prompts, or 64 of 4,096 tokens would have read 11 TB/s.)
KEYS = 0.73  # share of the memory's bandwidth at which attention reads keys and values
# One H200, the part `sampler` of task=check_gpu at 16 to 768 rows of 151,936 logits: a time for each call, because its
# kernels are launched one by one, and for each row. The draw (Gumbel noise, argmax); a softmax, for the log-probs that
# TRL asks for; the likeliest tokens that das's drafter remembers.
DRAW, LOG_PROBS, REMEMBER = np.array([0.12e-3, 0.45e-6]), np.array([0.08e-3, 0.59e-6]), np.array([0.15e-3, 0.28e-6])
GRAPH = 8  # rows: a pass is padded to a graph of a multiple of these, from 256 rows on of twice as many (vLLM)
# All-reduces of 2 GPUs, two in each layer: 33 us up to 32 rows of 3,584 to 5,120 numbers, 40 at 64 (the same published
# measurements, A100 with NVLink).
REDUCE, LINK = 33e-6, 150e9  # seconds; bytes per second

# ---- the host ----
# `stock` on one H200 at 64 and 256 requests, where the host is the limit, less the pass of the prompts: 7.0 and 14.7 ms
# (calls on other days took up to .9 ms less and 2.6 ms more at 256). TRL and the engine core in one process.
HOST, HOST_REQUEST = 4.43e-3, 40e-6  # seconds a pass, and for each live request
# vLLM's scheduler and output processor on one EPYC core, 64 and 256 requests with 1, 2 and 3 tokens: 4.6 to 5.4 us.
HOST_TOKEN = 5e-6  # seconds for each token that a request emits beyond the first
# vLLM's generate on the same core, 64 and 256 prompts of 256 tokens, until the first pass begins.
JOIN = 0.105e-3  # seconds to take in a request
# One H200. Passes with 4 and 8 random drafts a request, less the device's part, take .4, .9 and 1.7 ms longer at 1, 16
# and 64 requests; in profiled rollouts the device waits .7, 1.8 and 4.5 ms at 16, 64 and 256, and .6 ms more until the
# launched pass begins. The slope fits both; the constant lies between .55 ms, by the first, and 1.1 ms, by the second.
DRAFTING, DRAFTING_REQUEST = 0.85e-3, 15.6e-6  # seconds from the end of a pass to its drafts, and for each live request
# The thread that drafts in C (thread.h), assumed: .2 ms for tokens and drafts to cross PCIe, and what C takes
# for drafts of eight tokens (10 to 16 us a request on a loaded core).
THREAD, THREAD_REQUEST = 0.2e-3, 12e-6
# The same passes of the das that drafted before it launched take .9 to 1.6 ms longer, at 1 to 64 requests.
LAUNCH = 1.4e-3  # seconds to prepare and launch a pass, in series where its drafts must be known before


@dataclass(frozen=True)
class GpuTimes:
    """Times of passes (PassTimes).

    gpus         in tensor parallel
    das          whether das samples and drafts; False: vLLM as it comes
    log_probs    whether the sampled tokens' log-probs are asked for, as TRL does
    remembers    whether the drafter remembers distributions, except of passes at rest
    late         whether a pass is launched before its drafts are known. Not where requests join
    waits        whether drafting takes time; False: what drafts could gain at most
    thread       whether a thread in C drafts, beside the host's other work, as das does; False: as was measured
    reading      seconds of the host for each live request in a pass at rest, for which the drafter is not asked
    weight_bytes of a parameter; with one byte (FP8) products are computed twice as fast
    reduce, link the seconds of an all-reduce, and its bytes per second
    """

    gpu: Gpu
    model: Model
    gpus: int = 1
    das: bool = True
    log_probs: bool = True
    remembers: bool = True
    late: bool = True
    waits: bool = True
    thread: bool = True
    reading: float = 0.0
    weight_bytes: float = 2.0
    reduce: float = REDUCE
    link: float = LINK

    def device(
        self, live: Array, rows: Array, context: Array, prompt: Array | float = 0.0, remembers: bool = False
    ) -> Array:
        """Returns the seconds in which the device works on passes. rows: live + drafted. prompt: tokens of prompts.
        remembers: whether das's drafter remembers the distributions of the sampled tokens."""
        gpu, model = self.gpu, self.model
        bandwidth = gpu.bandwidth * self.gpus
        flops = gpu.flops * gpu.products * self.gpus * 2 / self.weight_bytes
        rows = np.where(rows < 32 * GRAPH, GRAPH * np.ceil(rows / GRAPH), 2 * GRAPH * np.ceil(rows / (2 * GRAPH)))
        weights = self.weight_bytes * model.read(rows + prompt, self.gpus) / (bandwidth * WEIGHTS)
        products = model.flop * (rows + prompt) / flops
        longer = np.maximum(weights, products)
        products = longer * ((weights / longer) ** gpu.knee + (products / longer) ** gpu.knee) ** (1 / gpu.knee)
        keys = model.kv_bytes * context / (bandwidth * KEYS)
        attention = np.maximum(keys, model.attention_flop * context * rows / live / flops)
        return (
            products + attention + self._sampler(rows, remembers) + LAYER * model.layers + self._reducing(rows + prompt)
        )

    def _sampler(self, rows: Array, remembers: bool) -> Array:
        each, row = DRAW + self.log_probs * LOG_PROBS + remembers * REMEMBER
        return each + row * rows * (self.model.vocabulary / 151_936) * (4.8e12 / self.gpu.bandwidth)

    def _reducing(self, rows: Array) -> Array:
        if self.gpus == 1:
            return np.zeros(np.shape(rows))
        sent = 2 * (self.gpus - 1) / self.gpus * 2 * self.model.hidden * rows
        return 2 * self.model.layers * (self.reduce + sent / self.link)

    def on_host(self, live: Array, emitted: Array) -> Array:
        """Returns the seconds of the host's work on passes, without drafting."""
        return HOST + HOST_REQUEST * live + HOST_TOKEN * (emitted - live)

    def drafting(self, live: float) -> float:
        """Returns the seconds from the end of a pass to the drafts of the next one."""
        each, request = (THREAD, THREAD_REQUEST) if self.thread else (DRAFTING, DRAFTING_REQUEST)
        return self.waits * (each + request * live)

    def seconds(self, work: PassWork) -> float:
        live, rows, context, prompt, emitted = (
            np.array(value, np.float64)
            for value in (work.live, work.live + work.drafted, work.context, work.new_prompt, work.emitted)
        )
        asked = self.das and bool(work.asked or work.drafted)
        device = float(self.device(live, rows, context, prompt, self.remembers and asked))
        host = float(self.on_host(live, emitted))
        joining = JOIN * work.joined
        if work.drafted:
            launch = 0.0 if self.late and not work.joined else LAUNCH
            return joining + launch + self.drafting(work.live) + max(device, host)
        if asked:
            return joining + max(device, host + self.drafting(work.live))
        return joining + max(device, host + self.das * self.reading * work.live)

    def plain(self, live: int, context: int, passes: int) -> Array:
        contexts = context + live * np.arange(passes, dtype=np.float64)
        b = np.full(passes, live, np.float64)
        reading = self.das * self.reading * live
        return np.maximum(self.device(b, b, contexts), self.on_host(b, b) + reading)


def gpu_times(gpu: str, model: str) -> GpuTimes:
    """Return das's times for a model on the fewest GPUs (1, 2, 4 ...) with a memory of at least 1.5 times its weights.

    Raises UserError if GPUS or MODELS lacks the name.
    """
    for what, name, known in (("GPU", gpu, GPUS), ("model size", model, MODELS)):
        if name not in known:
            known_names = ", ".join(known)
            raise UserError(
                f"unknown {what} {name!r}: choose one of {known_names}, or give task.latency=PATH (measured)"
            )
    gpus = 1
    while 2 * MODELS[model].parameters > GPUS[gpu].memory * gpus * 2 / 3:
        gpus *= 2
    return GpuTimes(GPUS[gpu], MODELS[model], gpus)
