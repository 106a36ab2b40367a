"""Those checks of task=check_gpu that need no large engine: the environment, the keyed sampler's kernel, and memory."""

import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments.gpu.verdict import Scale, Verdict


def environment(scale: Scale) -> Verdict:
    """Run the checks of `python -m das doctor`: versions, driver, hooks, and a tiny model with and without drafts."""
    from das.doctor import examine

    report = examine()
    found = {check.name: f"{check.state}: {check.line}" for check in report.checks}
    failed = [f"{check.name}: {check.line}" for check in report.checks if check.state == "FAIL"]
    by_name = {check.name: check.line for check in report.checks}
    line = "; ".join(failed) if failed else f"{by_name['device']}; {by_name['vllm']}; {by_name['identity']}"
    return Verdict(report.healthy, line, {"checks": found})


def sampler(scale: Scale) -> Verdict:
    """Check that the device's kernel picks the same tokens as plain torch, for random, tied and masked logits. Time the
    kernel and a softmax of the same logits. Then test the distribution of the sampled tokens."""
    import numpy as np
    import torch

    from das.verify.host_copies import on_device
    from das.verify.noise import keyed_argmax, noise_inputs, torch_argmax
    from experiments.harness.agreement import UNLIKELY, describe_distribution, distribution

    device = torch.device(scale.pick("cuda", "cpu"))
    vocab = scale.pick(151936, 2000)
    differing, rows_compared, times = 0, 0, {}
    for rows in scale.pick((1, 7, 64, 256), (1, 7)):
        logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows)) * 2
        logits[:, ::5] = -torch.inf
        logits[0, 1::97] = logits[0, -1] = 20.0  # ties, for a row without noise too
        logits = logits.to(device)
        seeds, positions, greedy = np.arange(rows) - 3, np.arange(rows) * 7, np.arange(rows) % 4 == 0
        inputs = on_device(device, noise_inputs(seeds, positions, greedy))
        plain = torch_argmax(logits, inputs["key0"], inputs["key1"], inputs["greedy"].bool())
        ours = keyed_argmax(logits, seeds, positions, greedy)
        differing += int((plain != ours).sum())
        rows_compared += rows
        times[str(rows)] = {
            "keyed_us": 1e6 * median_seconds(partial(keyed_argmax, logits, seeds, positions, greedy), device),
            "softmax_us": 1e6 * median_seconds(partial(torch.softmax, logits, -1), device),
        }
    level_1 = distribution(scale.pick(1_000_000, 20_000))
    widest = times[str(scale.pick(256, 7))]
    line = (
        f"{rows_compared - differing} of {rows_compared} rows of {vocab} logits have plain torch's token; "
        f"{widest['keyed_us']:.0f} us for {scale.pick(256, 7)} rows (their softmax {widest['softmax_us']:.0f} us); "
        + describe_distribution(level_1)
    )
    return Verdict(not differing and level_1["p_value"] > UNLIKELY, line, {"times": times, "distribution": level_1})


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


def memory(scale: Scale) -> Verdict:
    """Measure two needs of memory: that of sampling, beside the logits, and that of a digest of the weights, beside the
    weights."""
    import torch
    from vllm import SamplingParams

    from das.digests import weights_digest
    from das.verify.sampler import KeyedSampler
    from das.verify.sampling_pieces import SAMPLER_BYTES
    from experiments.harness.plain_batch import draft_metadata, plain_runner

    device = scale.pick("cuda", "cpu")
    vocab, requests, drafted = scale.pick(152064, 4000), scale.pick(256, 16), 31
    params = [SamplingParams(seed=i, temperature=0.6, top_p=0.95, logprobs=0) for i in range(requests)]
    runner: Any = plain_runner(params, vocab, device)
    drafts = draft_metadata([[1] * drafted] * requests, device)
    logits = torch.randn(requests * (drafted + 1), vocab, device=device, dtype=torch.bfloat16)
    sampling = _taken(partial(KeyedSampler(0, "processed_logprobs").sample, runner, logits, drafts), scale.gpu)
    model = torch.nn.Linear(scale.pick(18944, 1000), scale.pick(37888, 1000), dtype=torch.bfloat16, device=device)
    digesting = _taken(partial(weights_digest, model), scale.gpu)
    line = (
        f"sampling {requests * (drafted + 1)} rows of {vocab} takes {sampling / 2**20:.0f} MiB beside the logits, "
        f"a digest of weights {digesting / 2**20:.0f} MiB (allowed {SAMPLER_BYTES / 2**20:.0f} each)"
    )
    numbers = {"sampling_bytes": sampling, "digest_bytes": digesting, "limit_bytes": SAMPLER_BYTES}
    return Verdict(max(sampling, digesting) <= SAMPLER_BYTES, line, numbers)


def _taken(call: Callable[[], Any], gpu: bool) -> int:
    """Return the bytes by which the call raises the peak memory of the GPU or, on a CPU, of this process."""
    import torch

    if gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return int(torch.cuda.max_memory_allocated() - before)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    call()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
