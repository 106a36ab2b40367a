"""Look into engines of this process: how busy is the device? What does vLLM's verifier compute, for recorded text?"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from das.engine.patches.replace import patch
from das.verify.forced import RAISE
from experiments.gpu.engines import worker_of

ON_GPU = torch.cuda.is_available()


class Forced:
    """Lets the verifier of vLLM's own model runner emit recorded text, and counts what it verifies."""

    def __init__(self, llm: Any):
        self._runner = runner = worker_of(llm).model_runner
        self._forced: torch.Tensor | None = None  # the token of each row of logits, in a pass
        patch(runner, "sample", self._sample)
        patch(runner.model, "compute_logits", self._logits)

    def begin(self, texts: Sequence[Sequence[int]], prompt: int, first: int) -> None:
        """Begin a rollout. texts: of its requests. prompt: tokens of each prompt. first: the first request's number."""
        device = self._runner.device
        self._texts = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True).to(device)
        self._prompt, self._first = prompt, first
        self.passes = self.rows_verified = 0  # passes of each request that emit; drafted tokens in them
        self.rows_held = torch.zeros((), dtype=torch.int64, device=device)  # those that are no place without a draft

    def _sample(self, original: Any, hidden_states: Any, batch: Any, *rest: Any) -> Any:
        computed = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        self.passes += int((computed >= batch.prefill_len_np).sum())
        self.rows_verified += batch.num_draft_tokens
        # vLLM fills places without a draft with the request's last token.
        last = self._runner.req_states.last_sampled_tokens.view(-1)[batch.expanded_idx_mapping]
        tokens = batch.input_ids[batch.logits_indices]
        self.rows_held += ((batch.expanded_local_pos > 0) & (tokens != last)).sum()
        numbers = [int(name.partition("-")[0]) - self._first for name in batch.req_ids]
        owner = torch.from_numpy(np.repeat(numbers, np.diff(batch.cu_num_logits_np))).to(last.device)
        at = batch.positions[batch.logits_indices] + 1 - self._prompt
        self._forced = self._texts[owner, at.clamp(0, self._texts.shape[1] - 1)]
        try:
            return original(hidden_states, batch, *rest)
        finally:
            self._forced = None

    def _logits(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        logits = original(*args, **kwargs)
        if self._forced is not None:
            logits[torch.arange(len(logits), device=logits.device), self._forced] += RAISE
        return logits


@contextmanager
def profile(llm: Any, passes: range, found: dict[str, float]) -> Iterator[None]:
    """Inside the `with` block, profile these steps of the engine, and fill `found` (device_times)."""
    engine, step = llm.llm_engine, llm.llm_engine.step
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA if ON_GPU else torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=passes.start - 1, warmup=1, active=len(passes), repeat=1),
        on_trace_ready=lambda profiler: found.update(device_times(profiler.events())),
    ) as profiler:
        engine.step = lambda: (step(), profiler.step())[0]
        try:
            yield
        finally:
            engine.step = step


def device_times(events: Any) -> dict[str, float]:
    """Return in what shares of the time of a profile the device computes, and waits for drafts (`wait_for_drafts`)."""
    kind = torch.autograd.DeviceType.CUDA if ON_GPU else torch.autograd.DeviceType.CPU
    kernels = [each for each in events if each.device_type == kind and not each.is_user_annotation]
    span = max(each.time_range.end for each in kernels) - min(each.time_range.start for each in kernels)
    shares = {"device_share": 0.0, "wait_share": 0.0}
    for each in kernels:
        alone = each.self_device_time_total if ON_GPU else each.self_cpu_time_total
        shares["wait_share" if "wait_for_drafts" in each.name else "device_share"] += alone / span
    return shares
