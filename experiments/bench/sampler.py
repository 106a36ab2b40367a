"""task=bench_sampler: the cost of exactness, as ratios of times that are measured in turn in one run.

sampling       keyed sampler / vLLM's own with a seed per request, without drafts
verification   verifying batch x (draft + 1) rows, all drafts right / sampling as many rows, both keyed
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from experiments.harness.config import run_config
from experiments.harness.engine import prepare_process
from experiments.harness.validate import check
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure, print a line for each pair of ratios, write result.json."""
    check(run_config(config))
    progress = Progress(1)
    run_folder = RunFolder(Path(folder), config)
    prepare_process(run_config(config))
    result: dict[str, Any] = {"sampling": {}, "verification": {}}
    for vocabulary in config.task.vocabularies:
        for batch in config.task.batches:
            sampling, verification = sampler_ratios(vocabulary, batch, config.task.draft, config.task.repeats)
            result["sampling"][f"{vocabulary}x{batch}"] = sampling
            result["verification"][f"{vocabulary}x{batch}"] = verification
            progress.note(
                f"vocabulary {vocabulary:6d}  batch {batch:3d}   keyed / stock {spread(sampling)}   "
                f"verify / sample {spread(verification)}"
            )
    progress.note(f"result: {run_folder.write_result(result)}")


def spread(ratio: Mapping[str, float]) -> str:
    """A ratio with its quartiles, as text."""
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def paired_ratio(seconds: list[float], base: list[float]) -> dict[str, float]:
    """Ratio of times that were measured in turn: median and quartiles over the pairs; medians of both times, in us."""
    pairs = np.asarray(seconds) / np.asarray(base)
    low, middle, high = np.percentile(pairs, [25, 50, 75])
    micro = {"us": float(np.median(seconds)) * 1e6, "base_us": float(np.median(base)) * 1e6}
    return {"ratio": float(middle), "low": float(low), "high": float(high), **micro}


def sampler_ratios(vocabulary: int, batch: int, draft: int, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """(keyed / stock, verification / sampling of as many rows). draft: drafted tokens per request."""
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample.sampler import Sampler

    from das.verify.noise import keyed_argmax
    from das.verify.sampler import KeyedSampler
    from experiments.harness.plain_batch import draft_metadata, plain_runner

    rows = batch * (draft + 1)
    batch_runner = plain_runner([SamplingParams(seed=i) for i in range(batch)], vocabulary)
    rows_runner = plain_runner([SamplingParams(seed=i) for i in range(rows)], vocabulary)
    keyed, keyed_rows = (KeyedSampler(0, "processed_logprobs") for _ in range(2))
    stock = Sampler("processed_logprobs")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator)
    # Every drafted token is right, so the verifier cannot skip a row.
    owner, offset = np.repeat(np.arange(batch), draft + 1), np.tile(np.arange(draft + 1), batch)
    right_tokens = keyed_argmax(logits, owner, offset).view(batch, draft + 1)[:, :draft]
    drafts = draft_metadata(right_tokens.tolist())
    batch_logits = logits[:batch].clone()
    arms: dict[str, Callable[[], Any]] = {
        "stock": lambda: stock(batch_logits, batch_runner.input_batch.sampling_metadata),
        "keyed": lambda: keyed.sample(batch_runner, batch_logits, None),
        "sample": lambda: keyed_rows.sample(rows_runner, logits, None),
        "verify": lambda: keyed.sample(batch_runner, logits, drafts),
    }
    calls = {name: max(1, int(0.02 / second_call_s(arm))) for name, arm in arms.items()}  # 20 ms per timing
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                arm()
            times[name].append((time.perf_counter() - start) / calls[name])
    return paired_ratio(times["keyed"], times["stock"]), paired_ratio(times["verify"], times["sample"])


def second_call_s(arm: Callable[[], Any]) -> float:
    """Seconds that the second of two calls takes."""
    arm()
    start = time.perf_counter()
    arm()
    return time.perf_counter() - start
