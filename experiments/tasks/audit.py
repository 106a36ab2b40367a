"""task=audit: does speculation change anything on this machine? Each level reports how many of how many agree.

1 distribution   the verifier's tokens for fixed logits, against softmax (chi-square)
2 sample         the arm's rollouts, against the same rollouts without drafts: token ids, sequences, logits
3 training       a few GRPO steps with drafts, against the same steps without
"""

import multiprocessing
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis import arms as arm_analysis
from das.engine.build import build_engine
from experiments.harness import lock_step
from experiments.harness.arm_configs import arm_config
from experiments.harness.config import RunConfig, run_config
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.policies import policy_directory
from experiments.harness.rollout_steps import RolloutRun, roll_out_steps, tokenized
from experiments.harness.validate import check
from experiments.run.errors import RunFailed, UserError
from experiments.run.output import quiet_into
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

LISTED = 20  # logits that are compared at each position: the largest ones and the emitted token's
VOCAB, DRAFT = 64, 4  # level 1: tokens in the vocabulary, drafted tokens a request
REQUESTS = 1000  # level 1: requests in a pass
UNLIKELY = 1e-4  # level 1: a p-value below this is no chance result


def run(composed: DictConfig, overrides: list[str], folder: str) -> None:
    """Audit the arm; print a line a level and write result.json."""
    config, path = run_config(composed), Path(folder)
    check(config)
    if not config.arm.drafts:
        raise UserError(
            f"arm={config.arm.name} drafts nothing, so there is nothing to audit: name another arm, such as arm=das"
        )
    progress = Progress(int(config.task["train_steps"]), 2)
    policy = policy_directory(config, progress.note)
    run_folder = RunFolder(path, config.resolved)
    arms = {"none": arm_config("none", overrides), config.arm.name: config}
    result: dict[str, Any] = {}
    result["distribution"] = in_own_process(path / "distribution.log", distribution, config)
    progress.note(describe_distribution(result["distribution"]))
    plain, drafted = (in_own_process(path / f"{name}.log", rollouts, arm, policy) for name, arm in arms.items())
    if not drafted["accepted"]:
        raise RunFailed(
            f"arm {config.arm.name}: not one drafted token was accepted, so the audit would prove nothing; draft "
            "whatever it costs (budget=fixed), or roll out more (task.steps)"
        )
    result["sample"] = sample_agreement(plain["responses"], drafted["responses"])
    result["sample"]["accepted"] = drafted["accepted"]
    progress.note(describe_sample(result["sample"]))
    if config.task["train_steps"]:
        short = [*overrides, f"trainer.max_steps={config.task['train_steps']}", "wandb=off"]
        trained = {name: arm_config(name, short) for name in arms}
        result["training"] = training_agreement(trained, policy, run_folder, progress)
    progress.note(f"result: {run_folder.write_result(result)}")


def training_agreement(
    arms: Mapping[str, RunConfig], policy: str, run_folder: RunFolder, progress: Progress
) -> dict[str, Any]:
    """Level 3: train both arms, print the verdict; what of the second arm is identical to the first."""
    lock_step.run_arms(lock_step.Comparison(arms, policy, run_folder), progress)
    compared = arm_analysis.compare_arms(run_folder.path, list(arms))
    progress.note(f"level 3 training      {arm_analysis.identity_verdict(compared)}")
    identical: dict[str, Any] = compared["identical"][list(arms)[1]]
    return identical


def in_own_process(log: Path, function: Any, *arguments: Any) -> Any:
    """The function's result, computed in a fresh process: engines and thread settings do not affect each other.

    Raises RunFailed, in one line, where the function raised or the process died.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            result, error = pool.submit(_with_error, log, function, *arguments).result()
        except BrokenProcessPool:
            raise RunFailed(
                f"a process of the audit died without an error message (out of memory?): see {log}"
            ) from None
    if error:
        raise RunFailed(f"{error} (log: {log})")
    return result


def _with_error(log: Path, function: Any, *arguments: Any) -> tuple[Any, str]:
    """(result, "") or (None, what went wrong in one line). Some of vLLM's errors cannot be sent to the parent."""
    with quiet_into(log):
        try:
            return function(*arguments), ""
        except Exception as error:
            traceback.print_exc()
            return None, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def distribution(config: RunConfig) -> dict[str, Any]:
    """Level 1: at least `task.draws` tokens that the verifier emitted for fixed logits.

    A third of the requests draft from the same distribution, a third always the likeliest token, and a third always the
    least likely one.
    """
    prepare_process(config)
    import torch
    from vllm import SamplingParams

    from das.engine.plain_batch import draft_metadata, plain_runner
    from das.engine.sampler import KeyedSampler

    device = "cuda" if torch.cuda.is_available() else "cpu"
    runner: Any = plain_runner([SamplingParams(seed=i, temperature=1.0) for i in range(REQUESTS)], VOCAB, device)
    sampler = KeyedSampler(0, "processed_logprobs")
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 2
    probabilities = logits.double().softmax(0).numpy()
    rng = np.random.default_rng(0)
    counts = np.zeros(VOCAB, np.int64)
    while counts.sum() < config.task["draws"]:
        drafts = rng.choice(VOCAB, p=probabilities, size=(REQUESTS, DRAFT))
        drafts[1::3], drafts[2::3] = probabilities.argmax(), probabilities.argmin()
        rows = logits.to(device).repeat(REQUESTS * (DRAFT + 1), 1)
        sampled = sampler.sample(runner, rows, draft_metadata(drafts.tolist(), device))
        tokens = sampled.sampled_token_ids.cpu().numpy()
        emitted = tokens >= 0
        counts += np.bincount(tokens[emitted], minlength=VOCAB)
        runner.input_batch.num_tokens_no_spec[:REQUESTS] += emitted.sum(1).astype(np.int32)
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


def rollouts(config: RunConfig, policy: str) -> dict[str, Any]:
    """Level 2: an arm's responses. Each has its token ids and, for each position, {token: raw logit} of the largest."""
    prepare_process(config)
    settings = engine_settings(config, policy)
    llm = build_engine(settings, logprobs_mode="raw_logits", max_logprobs=LISTED)
    steps = RolloutRun(config, policy, int(config.task["steps"]), logprobs=LISTED)
    responses, accepted = [], 0
    for outputs, rollout in roll_out_steps(steps, llm, tokenized(config, policy)):
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
    """Agreement of the responses without and with drafts, up to the first token that differs."""
    tokens = agreeing = sequences = positions = equal = 0
    at_divergence, largest = [], 0.0
    for without, with_drafts in zip(plain, drafted, strict=True):
        pairs = zip(without["tokens"], with_drafts["tokens"], strict=False)
        common = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        same = without["tokens"] == with_drafts["tokens"]
        sequences += same
        tokens += max(len(without["tokens"]), len(with_drafts["tokens"]))
        agreeing += common
        # Logits after a common beginning come from equal texts: they may only differ by the kernels' rounding.
        difference = 0.0
        for i in range(min(common + 1, len(without["logits"]), len(with_drafts["logits"]))):
            difference = largest_difference(without["logits"][i], with_drafts["logits"][i])
            positions += 1
            equal += difference == 0.0
            largest = max(largest, difference)
        if not same:  # the last difference is at the first token that differs, or at the end of the shorter response
            at_divergence.append(difference)
    return {
        "tokens": tokens,
        "tokens_agreeing": agreeing,
        "sequences": len(plain),
        "sequences_agreeing": sequences,
        "positions": positions,
        "positions_with_equal_logits": equal,
        "largest_logit_difference": largest,
        "largest_logit_difference_at_first_divergence": max(at_divergence, default=None),
    }


def largest_difference(a: dict[int, float], b: dict[int, float]) -> float:
    """The largest difference of logits over the tokens that both positions list."""
    return max((abs(a[token] - b[token]) for token in a.keys() & b.keys()), default=float("inf"))


def describe_distribution(measured: dict[str, Any]) -> str:
    """The line of level 1."""
    verdict = "agrees" if measured["p_value"] > UNLIKELY else "DIFFERS"
    return (
        f"level 1 distribution  {verdict}: chi-square p = {measured['p_value']:.3g} over {measured['draws']} draws, "
        f"{measured['device']}"
    )


def describe_sample(sample: dict[str, Any]) -> str:
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
