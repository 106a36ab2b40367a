"""task=bench_sampler: what exactness costs, in ratios of arms interleaved in one run.

sampling       keyed sampler / vLLM's own with per-request seeds, no drafts
verification   batch x (draft + 1) rows verified, all drafts right / as many rows sampled, both keyed
decode_step    a decode step with the plug-in loaded, with keyed sampling, and in a drafting engine of requests that
               never draft / a decode step of vLLM without the plug-in
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.engine.build import EngineSettings
from experiments.harness.config import run_config
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.policies import policy_directory
from experiments.harness.validate import check
from experiments.run.errors import RunFailed
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

STEP_ARMS = ("stock", "loaded", "keyed", "never_drafting")
STEP_BATCHES = (1, 16)  # requests a burst


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure, print a line each, write result.json."""
    check(run_config(config))
    progress = Progress(1)
    run_folder = RunFolder(Path(folder), config)
    policy = policy_directory(run_config(config), progress.note) if config.task.rounds else ""
    prepare_process(run_config(config))
    result: dict[str, Any] = {"sampling": {}, "verification": {}, "decode_step": {}}
    for vocab in config.task.vocabularies:
        for batch in config.task.batches:
            sampling, verification = sampler_ratios(vocab, batch, config.task.draft, config.task.repeats)
            result["sampling"][f"{vocab}x{batch}"] = sampling
            result["verification"][f"{vocab}x{batch}"] = verification
            progress.note(
                f"vocabulary {vocab:6d}  batch {batch:3d}   keyed / stock {spread(sampling)}   "
                f"verify / sample {spread(verification)}"
            )
    if config.task.rounds:
        settings = engine_settings(run_config(config), policy)
        result["decode_step"] = step_ratios(settings, config.task.rounds, config.task.steps, Path(folder), progress)
    progress.note(f"result: {run_folder.write_result(result)}")


def spread(ratio: Mapping[str, float]) -> str:
    """Median with the quartiles."""
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def summarise(mine: list[float], base: list[float]) -> dict[str, float]:
    """Ratio of interleaved timings: median and quartiles of the pairs; medians of both, in microseconds."""
    pairs = np.asarray(mine) / np.asarray(base)
    low, middle, high = np.percentile(pairs, [25, 50, 75])
    micro = {"us": float(np.median(mine)) * 1e6, "base_us": float(np.median(base)) * 1e6}
    return {"ratio": float(middle), "low": float(low), "high": float(high), **micro}


def sampler_ratios(vocab: int, batch: int, draft: int, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """(keyed / stock, verification / plain sampling of as many rows)."""
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample.sampler import Sampler

    from das.engine.noise import keyed_argmax
    from das.engine.plain_batch import draft_metadata, plain_runner
    from das.engine.sampler import KeyedSampler

    rows = batch * (draft + 1)
    few = plain_runner([SamplingParams(seed=i) for i in range(batch)], vocab)
    many = plain_runner([SamplingParams(seed=i) for i in range(rows)], vocab)
    keyed, keyed_many = (KeyedSampler(0, "processed_logprobs") for _ in range(2))
    stock = Sampler("processed_logprobs")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab, generator=generator)
    # Every drafted token is right, so that no row can be skipped.
    owner, offset = np.repeat(np.arange(batch), draft + 1), np.tile(np.arange(draft + 1), batch)
    right = keyed_argmax(logits, owner, offset).view(batch, draft + 1)[:, :draft]
    drafts = draft_metadata(right.tolist())
    few_logits = logits[:batch].clone()
    arms: dict[str, Callable[[], Any]] = {
        "stock": lambda: stock(few_logits, few.input_batch.sampling_metadata),
        "keyed": lambda: keyed.sample(few, few_logits, None),
        "sample": lambda: keyed_many.sample(many, logits, None),
        "verify": lambda: keyed.sample(few, logits, drafts),
    }
    calls = {name: max(1, int(0.02 / once(arm))) for name, arm in arms.items()}  # 20 ms a timing
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(repeats):
        for name, arm in arms.items():
            start = time.perf_counter()
            for _ in range(calls[name]):
                arm()
            taken[name].append((time.perf_counter() - start) / calls[name])
    return summarise(taken["keyed"], taken["stock"]), summarise(taken["verify"], taken["sample"])


def once(arm: Callable[[], Any]) -> float:
    """Seconds of one call, after a first one."""
    arm()
    start = time.perf_counter()
    arm()
    return time.perf_counter() - start


def step_ratios(
    settings: EngineSettings, rounds: int, steps: int, folder: Path, progress: Progress
) -> dict[str, dict[str, float]]:
    """Decode step time of each arm / that of vLLM without the plug-in; an engine and a process each."""
    spawn = multiprocessing.get_context("spawn")
    pipes: dict[str, Connection] = {}
    processes = []
    for arm in STEP_ARMS:
        pipes[arm], theirs = spawn.Pipe()
        processes.append(spawn.Process(target=_step_process, args=(arm, settings, steps, folder, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        _answer(pipes[arm], arm, folder)  # one at a time: set-up is heavy
    result = {}
    for batch in STEP_BATCHES:
        taken: dict[str, list[float]] = {arm: [] for arm in STEP_ARMS}
        for turn in range(rounds):
            for i in range(len(STEP_ARMS)):
                arm = STEP_ARMS[(turn + i) % len(STEP_ARMS)]
                pipes[arm].send(batch)
                taken[arm].append(_answer(pipes[arm], arm, folder))
        for arm in STEP_ARMS[1:]:
            ratio = result[f"{arm}x{batch}"] = summarise(taken[arm], taken["stock"])
            progress.note(f"decode step, {batch:2d} requests   {arm:14s} / stock {spread(ratio)}")
    for pipe in pipes.values():
        pipe.close()
    for process in processes:
        process.join(timeout=15)
    return result


def _answer(pipe: Connection, arm: str, folder: Path) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RunFailed(f"the engine of arm {arm} died: see {folder / f'{arm}.log'}") from None


def _step_process(arm: str, settings: EngineSettings, steps: int, folder: Path, pipe: Connection) -> None:
    """Answer every batch size received with the seconds a decode step of a burst took, until the pipe closes."""
    if arm == "stock":
        os.environ["VLLM_PLUGINS"] = ""  # vLLM loads every installed plug-in unless told which
    with quiet_into(folder / f"{arm}.log"):
        from vllm import LLM, SamplingParams

        from das.engine.build import build_engine
        from das.engine.install import install
        from das.engine.proposer import LIMIT_KEY

        if arm in ("stock", "loaded"):
            arguments = {
                name: getattr(settings, name)
                for name in ("model", "dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "seed")
            }
            llm = LLM(**arguments, enforce_eager=True, gpu_memory_utilization=settings.gpu_memory_utilization)
        else:
            install()
            method = "none" if arm == "keyed" else "das"
            llm = build_engine(EngineSettings(**{**vars(settings), "method": method}))

        def burst(batch: int) -> float:
            params = [
                SamplingParams(seed=i, max_tokens=steps, ignore_eos=True, detokenize=False, extra_args={LIMIT_KEY: 0})
                for i in range(batch)
            ]
            prompts: Any = [{"prompt_token_ids": [5 + i, 6, 7, 8]} for i in range(batch)]
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            return (time.perf_counter() - start) / steps

        burst(4)
        pipe.send(None)
        while True:
            try:
                batch = pipe.recv()
            except EOFError:
                return
            pipe.send(burst(batch))
