"""Passes that begin before their drafts are known.

Only how many drafted tokens such a pass verifies is decided before (das.draft_round.RowsAhead). Which ones is decided
on the device once they are there, in vLLM's place for that: while the runner prepares the pass, its
`adaptive_verification` is a LateLengths. The lengths of the requests are known to the device alone, and come to the
host with the tokens. The host launches two kernels (late_kernels.py) and goes on. A CPU, which computes a pass when it
is launched, lets das draft there, and chooses in C.

Drafts decide no token, so a wait that ends in vain costs speed and nothing else. Only the sum of the lengths matters:
the pass has just so many rows.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from vllm.distributed import get_world_group
from vllm.v1.worker.gpu.spec_decode import rejection_sampler

from das.draft_round import admitted
from das.drafter import Drafts
from das.drafter.thread import Late
from das.engine.patches.replace import put
from das.verify.layout import on_device

PATIENCE = 200_000  # looks at the host's memory, about a microsecond each, before the device goes on without drafts
# What vLLM's runner calls of its own manager while it prepares a pass, and with what.
CALLS = {
    "get_num_tokens": ("num_tokens_per_req", "draft_tokens"),
    "compact_batch": ("num_draft_tokens_per_req", "num_scheduled_tokens", "cu_num_logits_np"),
    "reallocate_drafts": ("req_ids", "idx_mapping"),
}

_logger = logging.getLogger(__name__)


def why_not(vllm: Any) -> str:
    """Returns why the lengths of an engine's drafts cannot be decided on its device, in words; "" if they can be. vllm:
    its model runner, with its KV cache. vLLM itself asks most of this only where its own drafter does so."""
    config = vllm.vllm_config
    parallel, model = config.parallel_config, config.model_config
    found = {
        "adapters": config.lora_config is not None,
        "several ranks": get_world_group().world_size > 1 or parallel.data_parallel_size > 1,
        "two batches at once (DBO)": getattr(parallel, "use_ubatching", False),
        "batch-sharded sampling": getattr(parallel, "enable_batch_sharded_sampling", False),
        "sampling masks": getattr(model, "return_sampling_mask", False),
        "routed experts": getattr(model, "enable_return_routed_experts", False),
        "prompts that skip layers": getattr(vllm, "fast_prefill", None) is not None,
    }
    return next((name for name, is_so in found.items() if is_so), "") or _unsupported(vllm)


def _unsupported(vllm: Any) -> str:
    """Returns what of this vLLM or of the engine's attention cannot have lengths decided late, in words."""
    try:
        from vllm.v1.worker.gpu.attn_utils import get_query_lens_mismatch_unsupported_backend
        from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager as Manager
    except ImportError:
        return "this version of vLLM"
    for name, arguments in CALLS.items():
        if tuple(inspect.signature(getattr(Manager, name, lambda: None)).parameters)[1:] != arguments:
            return f"this version of vLLM ({name})"
    backend: str | None = get_query_lens_mismatch_unsupported_backend(vllm.attn_groups)
    return "" if backend is None else f"the attention backend {backend}"


class LateLengths:
    """Decides the lengths of late passes. vllm: the model runner. draft: drafts behind the last pass, now."""

    def __init__(self, vllm: Any, draft: Callable[[], None]):
        self._vllm, self._draft = vllm, draft
        out = vllm.req_states.draft_tokens
        self._on_cpu = out.device.type == "cpu"
        shapes = {"tokens": out.shape, "probs": out.shape, "counts": out.shape[:1], "marks": (2,)}
        # Pinned memory of the host: the memory profile and sleep mode see nothing of it.
        self._there = {
            name: torch.zeros(
                shape, dtype=torch.float64 if name == "probs" else torch.int64, pin_memory=not self._on_cpu
            )
            for name, shape in shapes.items()
        }
        self.memory = Late(**{name: tensor.numpy() for name, tensor in self._there.items()})
        self._missed = self._total = self._number = 0
        self._places: Mapping[str, int] = {}
        self._before: torch.Tensor
        self._most: np.ndarray
        if not self._on_cpu:  # compiled now, not amid passes
            none = torch.zeros(0, dtype=torch.int64, device=out.device)
            self._choose_on_device(none, torch.zeros((2, 0), dtype=torch.int32, device=out.device))

    def room(self, live: int) -> int:
        """Returns how many drafted tokens of so many requests vLLM can verify at once, in one piece."""
        return max(0, int(rejection_sampler.get_max_chunk_logits(self._vllm.vocab_size)) - live)

    @contextmanager
    def deciding(self, total: int, number: int, before: torch.Tensor, places: Mapping[str, int]) -> Iterator[None]:
        """Inside the `with` block, the runner prepares a pass of `total` drafted tokens, which come behind the pass of
        this number. before: the indices of that pass's requests in vLLM's arrays, on the device. places: its requests'
        rows."""
        self._total, self._number, self._before, self._places = total, number, before, places
        put(self._vllm, adaptive_verification=self)
        try:
            yield
        finally:
            put(self._vllm, adaptive_verification=None)
        if self.memory.marks[1] > self._missed:
            self._missed = int(self.memory.marks[1])
            _logger.warning("das: the device waited for a draft in vain; its pass verified others (harmless, but slow)")

    # ---- what vLLM's runner calls; each request of the pass has one row without a draft ----

    def get_num_tokens(self, num_tokens_per_req: Mapping[str, int], draft_tokens: Mapping[str, list[int]]) -> int:
        """Returns the rows of the pass."""
        return len(num_tokens_per_req) + self._total

    def compact_batch(
        self, num_draft_tokens_per_req: np.ndarray, num_scheduled_tokens: np.ndarray, cu_num_logits_np: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of each request, and where those of its logits begin, as far as the host knows: arrays are
        made by them. Drafted tokens are spread evenly over the requests that may have some, which come first."""
        self._most = num_draft_tokens_per_req
        even, able = np.zeros_like(num_scheduled_tokens), int((num_draft_tokens_per_req > 0).sum())
        even[:able] = self._total // able
        even[: self._total % able] += 1
        return num_scheduled_tokens - num_draft_tokens_per_req + even, cu_num_logits_np

    def reallocate_drafts(
        self, req_ids: list[str], idx_mapping: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Decides the lengths. Returns where each request's rows of logits begin, where its rows begin, and the number
        of drafted tokens."""
        rows = self._vllm.input_buffers.query_start_loc
        places = np.array([self._places[name] for name in req_ids])
        if self._on_cpu:
            self._draft()
            self._choose(places, rows)
        else:
            inputs = on_device(idx_mapping.device, {"inputs": np.stack((places, self._most))})
            self._choose_on_device(self._before, inputs["inputs"])
        return rows[: len(req_ids) + 1].clone(), rows, self._total

    def _choose(self, places: np.ndarray, rows: torch.Tensor) -> None:
        """Does what the kernels do."""
        memory, drafts = self.memory, self._vllm.req_states.draft_tokens
        drafts[self._before] = self._there["tokens"][: len(self._before)]
        made = Drafts(memory.tokens[places].astype(np.int32), memory.probs[places], memory.counts[places])
        counts = admitted(made, self._most.astype(np.int64), self._total)
        rows[0] = 0
        rows[1 : len(places) + 1] = torch.from_numpy(np.cumsum(counts + 1))

    def _choose_on_device(self, before: torch.Tensor, inputs: torch.Tensor) -> None:
        """Let the device wait for drafts and choose. inputs: places and most tokens, int32 [2, requests]."""
        import triton

        from das.engine.runner.late_kernels import admit, wait_for_drafts

        out, there = self._vllm.req_states.draft_tokens, self._there
        seats, longest = out.shape
        wait_for_drafts[(1,)](
            there["marks"], self._number, there["tokens"], before, out, len(before), longest, out.stride(0),
            PATIENCE=PATIENCE, BLOCK=triton.next_power_of_2(out.numel()),
        )  # fmt: skip
        admit[(1,)](
            there["probs"], there["counts"], inputs, inputs.shape[1], longest, self._total,
            self._vllm.input_buffers.query_start_loc, ROWS=triton.next_power_of_2(seats),
            LONGEST=triton.next_power_of_2(longest), num_warps=8,
        )  # fmt: skip
