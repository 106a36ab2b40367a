"""Make a batch of requests without an engine: vLLM's own InputBatch, for given sampling parameters.

Tests and benchmarks use it to run the verifier on logits of any shape.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch


@dataclass
class PlainRunner:
    """The parts of vLLM's runner that the verifier reads (protocol: das.verify.batch.RunningBatch)."""

    input_batch: Any
    requests: dict[str, Any]
    unfinished: np.ndarray  # bool
    sampler: Any = None


def plain_runner(parameters: Sequence[SamplingParams], vocab: int, device: str = "cpu") -> PlainRunner:
    """Make a runner with one request for each of `parameters`. A prompt is [0], and nothing is generated yet.

    vocab: number of tokens. device: name of a torch device.
    """
    num_requests = len(parameters)
    torch_device = torch.device(device)
    config: Any = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=num_requests))
    processors = LogitsProcessors(build(config, torch_device, False) for build in BUILTIN_LOGITS_PROCESSORS)
    blocks = {"block_sizes": [16], "max_num_blocks_per_req": [4]}
    if "kernel_block_sizes" in inspect.signature(InputBatch).parameters:  # vLLM up to 0.27
        blocks["kernel_block_sizes"] = [16]
    batch = InputBatch(num_requests, 64, 64, torch_device, vocab, logitsprocs=processors, **blocks)
    requests = {}
    for i, params in enumerate(parameters):
        generator = None if params.seed is None else torch.Generator(torch_device).manual_seed(params.seed)
        name = f"{i}-plain"
        requests[name] = CachedRequestState(name, [0], [], params, generator, ([0],), 1, [])
        batch.add_request(requests[name])
    batch.refresh_metadata()
    return PlainRunner(batch, requests, np.zeros(num_requests, bool))


def draft_metadata(drafts: Sequence[Sequence[int]], device: str = "cpu") -> SpecDecodeMetadata:
    """Make vLLM's description of a pass that verifies `drafts`: the drafted token ids of each request.

    Fields that KeyedSampler never reads are empty tensors.
    """
    num_drafted = [len(draft) for draft in drafts]
    tokens = torch.tensor([token for draft in drafts for token in draft], dtype=torch.int32, device=device)
    unread = torch.empty(0, dtype=torch.int32, device=device)
    return SpecDecodeMetadata(tokens, num_drafted, unread, unread, unread, unread, unread)
