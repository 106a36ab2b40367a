"""Look into an engine of this process: what does it verify, and how busy is its device? Force texts on vLLM."""

from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch

from das.engine.patches.replace import patch
from das.verify.forced import RAISE
from experiments.gpu.engines import worker_of


class Watch:
    """Counts in vLLM's model runner. fills_with_last: whether places without a draft hold the request's last token, as
    vLLM's n-grams do; das's hold 0."""

    def __init__(self, llm: Any, fills_with_last: bool = False):
        self._runner = runner = worker_of(llm).model_runner
        self._fills_with_last, self._batch = fills_with_last, None
        self.request_passes = self.rows_verified = 0  # passes of each request that emit; drafted tokens in them
        self._held = torch.zeros((), dtype=torch.int64, device=runner.device)
        self._texts_in_them = 0  # rows that hold a token of the text, among those of `_held`
        self._texts: list[list[int]] = []  # of requests that will be added
        self._forced = torch.zeros(0)
        self._prompt = torch.zeros(runner.max_num_reqs, dtype=torch.int64, device=runner.device)
        patch(runner, "sample", self._sample)
        patch(runner, "add_requests", self._add)
        patch(runner.model, "compute_logits", self._logits)

    @property
    def rows_held(self) -> int:
        """How many of the verified rows held a drafted token. Waits for the device."""
        return int(self._held) - self._texts_in_them

    def begin(self, texts: Sequence[Sequence[int]] = ()) -> None:
        """Begin to count. texts: that vLLM's verifier emits for the next requests, in their order; empty: none."""
        self.request_passes = self.rows_verified = 0
        self._held.zero_()
        self._texts_in_them = 0
        self._texts = [list(text) for text in texts]
        shape = len(self._prompt), max(map(len, texts), default=0)
        self._forced = torch.zeros(shape, dtype=torch.int64, device=self._prompt.device)

    def _add(self, original: Any, scheduled: Any) -> None:
        original(scheduled)
        states = self._runner.req_states
        for request in scheduled.scheduled_new_reqs if self._texts else ():
            index, text = states.req_id_to_index[request.req_id], self._texts.pop(0)
            self._forced[index, : len(text)] = torch.tensor(text).to(self._forced)
            self._prompt[index] = int(states.prompt_len.np[index])

    def _sample(self, original: Any, hidden_states: Any, batch: Any, *rest: Any) -> Any:
        has_token = batch.num_computed_tokens_np + batch.num_scheduled_tokens >= batch.prefill_len_np
        self.request_passes += int(has_token.sum())
        self.rows_verified += batch.num_draft_tokens
        if batch.num_draft_tokens:
            tokens = batch.input_ids[batch.logits_indices]
            if self._fills_with_last:
                last = self._runner.req_states.last_sampled_tokens.view(-1)[batch.expanded_idx_mapping]
                self._held += ((batch.expanded_local_pos > 0) & (tokens != last)).sum()
            else:  # few operations, because they are timed; no text has a 0
                self._held += torch.count_nonzero(tokens)
                self._texts_in_them += batch.num_reqs
        self._batch = batch
        try:
            return original(hidden_states, batch, *rest)
        finally:
            self._batch = None

    def _logits(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        logits, batch = original(*args, **kwargs), self._batch
        if batch is not None and self._forced.numel():
            of = batch.expanded_idx_mapping
            at = batch.positions[batch.logits_indices] + 1 - self._prompt[of]
            tokens = self._forced[of, at.clamp(0, self._forced.shape[1] - 1)]
            logits[torch.arange(len(tokens), device=tokens.device), tokens] += RAISE
        return logits


@contextmanager
def profile(llm: Any, passes: range, found: dict[str, float]) -> Any:
    """Inside the `with` block, profile these steps of the engine. Fills `found`; it stays empty if there were fewer."""
    engine, step, count = llm.llm_engine, llm.llm_engine.step, 0
    cuda = torch.cuda.is_available()
    activity = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
    watched = torch.profiler.profile(activities=[activity])

    def watched_step() -> Any:
        nonlocal count
        if count == passes.start:
            watched.start()
        outputs = step()
        count += 1
        if count == passes.stop:
            if cuda:
                torch.cuda.synchronize()
            watched.stop()
            kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
            events = [each for each in watched.events() if each.device_type == kind and not each.is_user_annotation]
            found.update(device_times(events, len(passes)))
        return outputs

    engine.step = watched_step
    try:
        yield
    finally:
        engine.step = step


def device_times(kernels: Any, passes: int) -> dict[str, float]:
    """Sum up a profile: in what share of the time does the device compute; milliseconds a pass in which it computes,
    waits for drafts (`wait_for_drafts`), and has nothing to do. kernels: with `name`, `time_range.start` and `.end` in
    microseconds."""
    spans = sorted((each.time_range.start, each.time_range.end, each.name) for each in kernels)
    if not spans:
        return {}
    busy = waiting = 0.0
    until = first = spans[0][0]
    for start, end, name in spans:
        new = max(0.0, end - max(start, until))
        waiting, busy = (waiting + new, busy) if "wait_for_drafts" in name else (waiting, busy + new)
        until = max(until, end)
    ms = 1e-3 / passes
    gaps = until - first - busy - waiting
    return {"device_share": busy / (until - first), "busy_ms": busy * ms, "wait_ms": waiting * ms, "idle_ms": gaps * ms}
