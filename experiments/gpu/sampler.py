"""The part `sampler` of task=check_gpu: the keyed sampler's kernels give plain torch's tokens, and what a row costs."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.gpu.verdict import Scale, Verdict

ROWS = (16, 144, 320, 768)  # of passes with 16 to 256 requests


def sampler(scale: Scale) -> Verdict:
    """Check that the kernels choose the tokens of those for CPUs, for random, tied and masked logits, and that drafters
    remember the same distributions. Time them a row, beside a softmax and a copy. Then test the distribution of the
    sampled tokens (level 1)."""
    import numpy as np
    import torch

    from das.verify.layout import on_device
    from das.verify.noise import (
        device_argmax,
        keyed_argmax,
        likeliest,
        noise_inputs,
    )
    from experiments.harness.agreement import UNLIKELY, describe_distribution, distribution

    device = torch.device(scale.pick("cuda", "cpu"))
    vocab = scale.pick(151936, 2000)
    differing, compared, pairs_differing, us = 0, 0, 0, {}
    for rows in scale.pick(ROWS, (1, 7)):
        logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)) * 2
        logits[:, ::5] = -torch.inf
        logits[0, 1::97] = logits[0, -1] = 20.0  # ties, for a row without noise too
        logits = logits.to(device)
        seeds, positions, greedy = np.arange(rows) - 3, np.arange(rows) * 7, np.arange(rows) % 4 == 0
        inputs = on_device(device, noise_inputs(seeds, positions, greedy))
        few = min(rows, 64)  # the CPU takes its time
        in_c = logits[:few].cpu()
        tokens = keyed_argmax(logits, seeds, positions, greedy)[:few].cpu()
        differing += int((keyed_argmax(in_c, seeds[:few], positions[:few], greedy[:few]) != tokens).sum())
        compared += few
        pairs = likeliest(logits, np.arange(rows))
        if scale.gpu:
            torch.cuda.synchronize()
        pairs_differing += int((likeliest(in_c, np.arange(few))[1:] != pairs[1:few]).sum())
        half = logits.to(torch.bfloat16)
        calls: dict[str, Callable[[], Any]] = {
            "softmax": partial(torch.softmax, logits, -1),
            "to_float32": partial(half.to, torch.float32),
            "likeliest": partial(likeliest, logits, np.arange(rows)),
            "topk": partial(torch.topk, logits, 4),
            "logsumexp": partial(torch.logsumexp, logits, -1),
        }
        if scale.gpu:
            calls["keyed"] = partial(device_argmax, logits, inputs)
        us[str(rows)] = {name: 1e6 * median_seconds(call, device) / rows for name, call in calls.items()}
        scale.note(
            {"rows": rows, "us_a_row": us[str(rows)], "tokens_differing": differing, "pairs_differing": pairs_differing}
        )
    level_1 = distribution(scale.pick(1_000_000, 20_000))
    shown = scale.pick(320, 7)
    line = (
        f"{compared - differing} of {compared} rows of {vocab} logits have the token of a CPU's kernel, "
        f"{pairs_differing} pairs differ; us a row at {shown} rows: "
        + ", ".join(f"{name} {took:.2f}" for name, took in us[str(shown)].items())
        + f"; {describe_distribution(level_1)}"
    )
    ok = not differing and level_1["p_value"] > UNLIKELY
    return Verdict(ok, line, {"us_a_row": us, "distribution": level_1, "pairs_differing": pairs_differing})


def median_seconds(call: Callable[[], Any], device: Any) -> float:
    """Return the median seconds that a call takes until the device has done its work."""
    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    times = []
    for _ in range(12):
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[5]
