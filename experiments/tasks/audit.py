"""task=audit: does speculation change anything on this machine? Per level, how many of how many agree.

1 distribution   the verifier on fixed logits, against softmax (chi-square)
2 sample         the arm's rollouts against the same rollouts without drafts: token ids, sequences, logits
3 training       a few GRPO steps of both
"""

import multiprocessing
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis import arms as arm_analysis
from experiments.harness import setup
from experiments.harness.arms import arm_config
from experiments.harness.lock_step import run_arms
from experiments.harness.rolls import rolled
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

LISTED = 20  # logits that are compared at each position: the largest ones and the emitted token's
VOCAB, DRAFT = 64, 4  # level 1: tokens, drafted tokens a request
SURELY = 1e-4  # level 1: a smaller p-value is no chance


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Audit `config.arm`; print a line a level and write result.json."""
    setup.check(config)
    if config.arm.method == "none":
        raise UserError("arm=none drafts nothing, so there is nothing to audit: name another arm, such as arm=das")
    progress = Progress(int(config.task.train_steps), 2)
    policy = setup.policy_directory(config, progress.note)
    run_folder = RunFolder(Path(folder), config)
    arms = {"none": arm_config("none", overrides), config.arm.name: config}
    result: dict[str, Any] = {"distribution": in_own_process(Path(folder) / "distribution.log", distribution, config)}
    first = result["distribution"]
    progress.note(
        f"level 1 distribution  {'agrees' if first['p_value'] > SURELY else 'DIFFERS'}: chi-square p = "
        f"{first['p_value']:.3g} over {first['draws']} draws, {first['device']}"
    )
    recorded = [in_own_process(Path(folder) / f"{name}.log", rollouts, arm, policy) for name, arm in arms.items()]
    result["sample"] = sample_agreement(recorded[0]["responses"], recorded[1]["responses"])
    result["sample"]["accepted"] = recorded[1]["accepted"]
    if not recorded[1]["accepted"]:
        raise RunFailed(f"arm {config.arm.name}: not one drafted token was accepted, the audit would prove nothing")
    progress.note(describe(result["sample"]))
    if config.task.train_steps:
        short = [*overrides, f"trainer.max_steps={config.task.train_steps}", "wandb=off"]
        run_arms({name: arm_config(name, short) for name in arms}, policy, Path(folder), progress, run_folder)
        compared = arm_analysis.compare_arms(Path(folder), list(arms))
        result["training"] = compared["identical"][config.arm.name]
        progress.note(f"level 3 training      {arm_analysis.identity_verdict(compared)}")
    progress.note(f"result: {run_folder.write_result(result)}")


def in_own_process(log: Path, function: Any, *arguments: Any) -> Any:
    """The function's result, computed in a fresh process: engines and thread settings stay apart."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            result, error = pool.submit(_with_error, log, function, *arguments).result()
        except BrokenProcessPool:
            raise RunFailed(f"a process of the audit died without a word (out of memory?): see {log}") from None
    if error:
        raise RunFailed(f"{error} (log: {log})")
    return result


def _with_error(log: Path, function: Any, *arguments: Any) -> tuple[Any, str]:
    """(result, "") or (None, what went wrong in one line): vLLM's own errors cannot always be sent to the parent."""
    with quiet_into(log):
        try:
            return function(*arguments), ""
        except Exception as error:
            traceback.print_exc()
            return None, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def distribution(config: DictConfig) -> dict[str, Any]:
    """Level 1: at least task.draws tokens emitted for fixed logits; drafts by turns from the same distribution, always
    the likeliest token, always the least likely."""
    setup.prepare(config)
    import torch
    from vllm import SamplingParams

    from das.engine.plain_batch import draft_metadata, plain_runner
    from das.engine.sampler import KeyedSampler

    device = "cuda" if torch.cuda.is_available() else "cpu"
    requests = 1000
    runner = plain_runner([SamplingParams(seed=i, temperature=1.0) for i in range(requests)], VOCAB, device)
    sampler = KeyedSampler(0, "processed_logprobs")
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    probabilities = logits.double().softmax(0).numpy()
    rng = np.random.default_rng(0)
    counts = np.zeros(VOCAB, np.int64)
    while counts.sum() < config.task.draws:
        drafts = rng.choice(VOCAB, p=probabilities, size=(requests, DRAFT))
        drafts[1::3], drafts[2::3] = probabilities.argmax(), probabilities.argmin()
        rows = logits.to(device).repeat(requests * (DRAFT + 1), 1)
        runner_batch: Any = runner
        emitted = (
            sampler.sample(runner_batch, rows, draft_metadata(drafts.tolist(), device)).sampled_token_ids.cpu().numpy()
        )
        kept = emitted >= 0
        counts += np.bincount(emitted[kept], minlength=VOCAB)
        runner.input_batch.num_tokens_no_spec[:requests] += kept.sum(1).astype(np.int32)
    return {"draws": int(counts.sum()), "p_value": chi_square_p(counts, probabilities), "device": device}


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """p-value of Pearson's chi-square test: how likely counts at least as unusual are if `probabilities` are true.

    It is the upper tail Q(degrees of freedom / 2, statistic / 2) of the regularised incomplete gamma function.
    torch has that function, so that no statistics package is needed at run time.
    """
    import torch

    expected = probabilities * counts.sum()
    statistic = float((np.square(counts - expected) / expected).sum())
    half_freedom = torch.tensor((len(counts) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2, dtype=torch.float64)))


def rollouts(config: DictConfig, policy: str) -> dict[str, Any]:
    """Level 2: an arm's responses, each with its token ids and, a position, {token: raw logit} of the largest ones."""
    setup.prepare(config)
    from das.engine.build import build_engine

    llm = build_engine(setup.engine_settings(config, policy), logprobs_mode="raw_logits", max_logprobs=LISTED)
    responses, accepted = [], 0
    for outputs, rollout in rolled(config, policy, llm, logprobs=LISTED):
        accepted += rollout.tokens - rollout.report["passes"]
        responses += [
            {
                "tokens": list(output.outputs[0].token_ids),
                "logits": [
                    {token: entry.logprob for token, entry in position.items()}
                    for position in output.outputs[0].logprobs
                ],
            }
            for output in outputs
        ]
    return {"responses": responses, "accepted": accepted}


def sample_agreement(plain: Sequence[dict[str, Any]], drafted: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Agreement of responses with and without drafts, as far as their common beginnings go."""
    tokens = agreeing = sequences = exact = compared = 0
    at_divergence, anywhere = [], 0.0
    for a, b in zip(plain, drafted, strict=True):
        pairs = zip(a["tokens"], b["tokens"], strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        same = a["tokens"] == b["tokens"]
        sequences += same
        tokens += max(len(a["tokens"]), len(b["tokens"]))
        agreeing += common
        # The logits after a common beginning come from equal texts: they may only differ by the kernels' rounding.
        difference = 0.0
        for i in range(min(common + 1, len(a["logits"]), len(b["logits"]))):
            difference = largest_difference(a["logits"][i], b["logits"][i])
            compared += 1
            exact += difference == 0.0
            anywhere = max(anywhere, difference)
        if not same:  # at the first token that differs, or at the end of the shorter response
            at_divergence.append(difference)
    return {
        "tokens": tokens,
        "tokens_agreeing": agreeing,
        "sequences": len(plain),
        "sequences_agreeing": sequences,
        "positions": compared,
        "positions_with_equal_logits": exact,
        "largest_logit_difference": anywhere,
        "largest_logit_difference_at_first_divergence": max(at_divergence, default=None),
    }


def largest_difference(a: dict[int, float], b: dict[int, float]) -> float:
    """Over the tokens that both list."""
    return max((abs(a[token] - b[token]) for token in a.keys() & b.keys()), default=float("inf"))


def describe(sample: dict[str, Any]) -> str:
    """The line of level 2."""
    first = sample["largest_logit_difference_at_first_divergence"]
    return (
        f"level 2 sample        {sample['tokens_agreeing']} of {sample['tokens']} tokens, "
        f"{sample['sequences_agreeing']} of {sample['sequences']} sequences agree; logits equal at "
        f"{sample['positions_with_equal_logits']} of {sample['positions']} positions, largest difference "
        f"{sample['largest_logit_difference']:.3g}"
        + (f", at the first divergence {first:.3g}" if first is not None else ", no divergence")
        + f" ({sample['accepted']} drafted tokens accepted)"
    )
