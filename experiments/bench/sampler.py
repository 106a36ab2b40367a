"""task=bench_sampler: the cost of exactness, as ratios of times. The variants take turns within one run.

sampling       time of the keyed sampler / time of vLLM's sampler with a seed per request; both without drafts
verification   time to verify batch x (draft + 1) rows with all drafts right / time to sample as many rows; both keyed
decode_step    time of a decode step / time of a decode step of vLLM without the plug-in, for these arms: the plug-in is
               loaded; sampling is keyed; our drafting engine with requests that never draft; vLLM with its ngram
               drafter, which finds nothing
tax_us         the time that a drafting engine adds to a step of requests that never draft: our engine (never_drafting
               - keyed), vLLM with its ngram drafter (ngram - stock), and the difference of the two; also the time of
               our own code in such a pass (proposer and meter), which is measured directly
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from das.engine.build import EngineSettings
from das.process import spawned
from experiments.harness.config import run_config
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.policies import policy_directory
from experiments.harness.validate import check
from experiments.run.errors import RunFailed
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

STEP_ARMS = ("stock", "loaded", "keyed", "never_drafting", "ngram")
STEP_BATCHES = (1, 16, 64)  # requests per burst: these begin at the same time, and decode together
FIRST = 5  # the first steps of a burst are left out, because they compute the prompts


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Measure the ratios that the module's docstring lists, print a line for each, and write result.json."""
    check(run_config(config))
    progress = Progress(1)
    run_folder = RunFolder(Path(folder), config)
    policy = policy_directory(run_config(config), progress.note) if config.task.rounds else ""
    prepare_process(run_config(config))
    result: dict[str, Any] = {"sampling": {}, "verification": {}, "decode_step": {}, "tax_us": {}}
    for vocabulary in config.task.vocabularies:
        for batch in config.task.batches:
            sampling, verification = sampler_ratios(vocabulary, batch, config.task.draft, config.task.repeats)
            result["sampling"][f"{vocabulary}x{batch}"] = sampling
            result["verification"][f"{vocabulary}x{batch}"] = verification
            progress.note(
                f"vocabulary {vocabulary:6d}  batch {batch:3d}   keyed / stock {spread(sampling)}   "
                f"verify / sample {spread(verification)}"
            )
    if config.task.rounds:
        settings = replace(engine_settings(run_config(config), policy), max_num_seqs=max(STEP_BATCHES))
        seconds, own_code = step_seconds(settings, config.task.rounds, config.task.steps, Path(folder))
        for batch, arms in seconds.items():
            for arm in STEP_ARMS[1:]:
                ratio = result["decode_step"][f"{arm}x{batch}"] = paired_ratio(arms[arm], arms["stock"])
                progress.note(f"decode step, {batch:2d} requests   {arm:14s} / stock {spread(ratio)}")
            tax = result["tax_us"][str(batch)] = taxes(arms, own_code[batch])
            parts = "   ".join(
                f"{part} {us['median']:.0f} [{us['low']:.0f}, {us['high']:.0f}]" for part, us in tax.items()
            )
            progress.note(f"tax, {batch:2d} requests, us   {parts}")
    progress.note(f"result: {run_folder.write_result(result)}")


def spread(ratio: Mapping[str, float]) -> str:
    """Return a ratio with its quartiles as text. ratio: the result of `paired_ratio`."""
    return f"{ratio['ratio']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def paired_ratio(seconds: list[float], base: list[float]) -> dict[str, float]:
    """Return the median and the quartiles of seconds / base over pairs of times, and the medians of both, in us."""
    pairs = np.asarray(seconds) / np.asarray(base)
    low, middle, high = np.percentile(pairs, [25, 50, 75])
    micro = {"us": float(np.median(seconds)) * 1e6, "base_us": float(np.median(base)) * 1e6}
    return {"ratio": float(middle), "low": float(low), "high": float(high), **micro}


def sampler_ratios(vocabulary: int, batch: int, draft: int, repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return two ratios of times: the keyed sampler's to vLLM's, and that of verifying rows to sampling as many rows.
    vocabulary: tokens. batch: requests. draft: drafted tokens per request. repeats: number of timings."""
    import torch
    from vllm import SamplingParams
    from vllm.v1.sample.sampler import Sampler

    from das.verify.noise import keyed_argmax
    from experiments.harness.plain_batch import PlainRunner, stock_metadata

    rows = batch * (draft + 1)
    of_batch, of_rows = ([SamplingParams(seed=i) for i in range(count)] for count in (batch, rows))
    keyed, keyed_rows = PlainRunner(of_batch, vocabulary, draft), PlainRunner(of_rows, vocabulary)
    stock, metadata = Sampler("processed_logprobs"), stock_metadata(of_batch, vocabulary)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator)
    # Every drafted token is right, so the verifier cannot skip a row.
    owner, offset = np.repeat(np.arange(batch), draft + 1), np.tile(np.arange(draft + 1), batch)
    right_tokens = keyed_argmax(logits, owner, offset).view(batch, draft + 1)[:, :draft]
    drafts = right_tokens.tolist()
    batch_logits = logits[:batch].clone()
    arms: dict[str, Callable[[], Any]] = {
        "stock": lambda: stock(batch_logits, metadata),
        "keyed": lambda: keyed.sample(batch_logits, None),
        "sample": lambda: keyed_rows.sample(logits, None),
        "verify": lambda: keyed.sample(logits, drafts),
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
    """Call twice, and return the seconds of the second call."""
    arm()
    start = time.perf_counter()
    arm()
    return time.perf_counter() - start


def taxes(seconds: Mapping[str, list[float]], own_code: list[float]) -> dict[str, dict[str, float]]:
    """Return the time that a drafting engine adds to a step of requests that never draft, in us, and its parts.

    Each is a median with quartiles over the rounds. seconds: arm -> seconds of a step, one for each burst. own_code:
    the seconds of a step that the arm never_drafting spent in our code, one for each burst.
    """
    arms = {arm: 1e6 * np.asarray(times) for arm, times in seconds.items()}
    whole, vllm = arms["never_drafting"] - arms["keyed"], arms["ngram"] - arms["stock"]
    parts = {"whole": whole, "vllm": vllm, "difference": whole - vllm, "own_code": 1e6 * np.asarray(own_code)}
    quartiles = {part: np.percentile(values, [25, 50, 75]) for part, values in parts.items()}
    return {
        part: {"median": float(middle), "low": float(low), "high": float(high)}
        for part, (low, middle, high) in quartiles.items()
    }


def step_seconds(
    settings: EngineSettings, rounds: int, steps: int, folder: Path
) -> tuple[dict[int, dict[str, list[float]]], dict[int, list[float]]]:
    """Return two mappings: requests per burst -> arm -> the median seconds of a decode step, one for each burst; and
    requests per burst -> the seconds of a step that the arm never_drafting spends in our code, one for each burst. The
    arms take turns, burst by burst. Each arm has an engine in its own process.
    """
    pipes: dict[str, Connection] = {}
    processes = []
    for arm in STEP_ARMS:
        process, pipes[arm] = spawned(_step_process, arm, settings, steps, folder)
        processes.append(process)
        _answer(pipes[arm], arm, folder)  # one after the other: building an engine is heavy
    seconds: dict[int, dict[str, list[float]]] = {}
    own_code: dict[int, list[float]] = {batch: [] for batch in STEP_BATCHES}
    for batch in STEP_BATCHES:
        times = seconds[batch] = {arm: [] for arm in STEP_ARMS}
        for turn in range(rounds):
            for i in range(len(STEP_ARMS)):
                arm = STEP_ARMS[(turn + i) % len(STEP_ARMS)]
                pipes[arm].send(batch)
                step_s, own_s = _answer(pipes[arm], arm, folder)
                times[arm].append(step_s)
                if arm == "never_drafting":
                    own_code[batch].append(own_s)
    for pipe in pipes.values():
        pipe.close()
    for process in processes:
        process.join(timeout=15)
    return seconds, own_code


def _answer(pipe: Connection, arm: str, folder: Path) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RunFailed(f"the engine of arm {arm} died: see {folder / f'{arm}.log'}") from None


def _step_process(arm: str, settings: EngineSettings, steps: int, folder: Path, pipe: Connection) -> None:
    """Serve an arm in this process. It receives numbers of requests until the pipe closes, and runs a burst for each.

    It answers with the seconds of a decode step, and with the seconds that our proposer and meter took in a step. Only
    the arm "never_drafting" measures the time of proposer and meter.
    """
    if arm in ("stock", "ngram"):
        os.environ["VLLM_PLUGINS"] = ""  # vLLM loads every installed plug-in unless this names some
    with quiet_into(folder / f"{arm}.log"):
        from vllm import LLM, SamplingParams

        from das.engine.build import build_engine
        from das.engine.install import install
        from das.verify.admission import LIMIT_KEY

        if arm in ("stock", "loaded", "ngram"):
            arguments = {
                name: getattr(settings, name)
                for name in ("model", "dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "seed")
            }
            if arm == "ngram":  # no text repeats so long a sequence, so this drafter finds nothing
                ngram = {"prompt_lookup_min": steps, "prompt_lookup_max": steps}
                arguments["speculative_config"] = {"method": "ngram", "num_speculative_tokens": 32, **ngram}
            llm = LLM(**arguments, enforce_eager=True, gpu_memory_utilization=settings.gpu_memory_utilization)
        else:
            install()
            method = "none" if arm == "keyed" else "das"
            llm = build_engine(EngineSettings(**{**vars(settings), "method": method}))

        ended: list[float] = []  # the time at which each step of the burst ended
        own_s: list[float] = [0.0]  # seconds of our code, by step
        step = llm.llm_engine.step

        def timed_step() -> Any:
            outputs = step()
            ended.append(time.perf_counter())
            own_s.append(0.0)
            return outputs

        llm.llm_engine.step = timed_step
        if arm == "never_drafting":
            from das.engine.proposer import DasProposer
            from das.engine.rollouts.meter import RolloutMeter

            _add_time(DasProposer, "propose", own_s)
            _add_time(RolloutMeter, "record_pass", own_s)

        def burst(batch: int) -> tuple[float, float]:
            params = [
                SamplingParams(seed=i, max_tokens=steps, ignore_eos=True, detokenize=False, extra_args={LIMIT_KEY: 0})
                for i in range(batch)
            ]
            prompts: Any = [{"prompt_token_ids": [5 + i, 6, 7, 8]} for i in range(batch)]
            ended.clear()
            own_s[:] = [0.0]
            llm.generate(prompts, params, use_tqdm=False)
            return float(np.median(np.diff(ended[FIRST:]))), float(np.median(own_s[FIRST:-1]))

        burst(4)
        pipe.send(None)
        while True:
            try:
                batch = pipe.recv()
            except EOFError:
                return
            pipe.send(burst(batch))


def _add_time(owner: type, name: str, seconds: list[float]) -> None:
    """Replace the method owner.name by one that adds the time of each call to the last item of `seconds`."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = original(*args, **kwargs)
        seconds[-1] += time.perf_counter() - start
        return result

    setattr(owner, name, timed)
