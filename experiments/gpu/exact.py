"""Three parts of task=check_gpu about equal tokens.

sampler  the keyed sampler's kernels choose the CPU kernel's tokens, which follow the policy's distribution (level 1)
tokens   with exact="bits" tokens and logits depend neither on drafts nor on the batch
grpo     two training steps with and without drafts are equal bit by bit (level 3)

For `tokens` one engine with random weights rolls out the same requests, with the same seeds, three times: all together
without drafts, in halves without drafts, and with drafts of 0 to 32 tokens, which differ between requests. Its drafter
remembers the first rollouts, so most drafts are right. Passes begin before their drafts are known (late drafts), or the
part fails. On a GPU the model has 8B's width, so that it takes the kernels of 7B and 8B models: both of
FlashAttention's kernels (which change with the rows of a request), norms of more than 256 rows, contexts up to 4k.
"""

import json
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from analysis.arms import identity_verdict
from das.verify.admission import LIMIT_KEY, PROBLEM_KEY
from das.verify.noise import keyed_argmax, likeliest
from experiments.gpu.engines import THIN, Row, Scale, Verdict, build, worker_of
from experiments.settings.compose import composed
from experiments.settings.config import run_config
from experiments.settings.tasks import TASKS

ROWS = (16, 144, 320, 768)  # of passes with 16 to 256 requests
UNLIKELY = 1e-4  # a p-value below this means that the distributions differ


def sampler(scale: Scale) -> Verdict:
    """Compare tokens, and the likeliest ones that drafters remember, for random, tied and masked logits."""
    vocabulary = scale.pick(151936, 2000)
    compared = differing = pairs_differing = 0
    for rows in scale.pick(ROWS, (1, 7)):
        logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rows)) * 2
        logits[:, ::5] = -torch.inf
        logits[0, 1::97] = logits[0, -1] = 20.0  # ties, for a row without noise too
        keys = np.arange(rows) - 3, np.arange(rows) * 7, np.arange(rows) % 4 == 0
        on_device, few = logits.to(scale.pick("cuda", "cpu")), min(rows, 64)  # the CPU takes its time
        tokens = keyed_argmax(on_device, *keys)[:few].cpu()
        differing += int((keyed_argmax(logits[:few], *(key[:few] for key in keys)) != tokens).sum())
        pairs = likeliest(on_device, np.arange(rows))
        if scale.gpu:
            torch.cuda.synchronize()
        pairs_differing += int((likeliest(logits[:few], np.arange(few))[1:] != pairs[1:few]).sum())
        compared += few
        scale.note(rows=rows, tokens_differing=differing, pairs_differing=pairs_differing)
    draws = scale.pick(1_000_000, 20_000)
    p_value = chi_square_p(draws, scale.pick("cuda", "cpu"))
    scale.note(draws=draws, p_value=p_value)
    line = (
        f"{compared - differing} of {compared} rows of {vocabulary} logits have the token of a CPU's kernel, "
        f"{pairs_differing} pairs differ; level 1 {'agrees' if p_value > UNLIKELY else 'DIFFERS'}: chi-square "
        f"p = {p_value:.3g} over {draws} draws"
    )
    return Verdict(not differing and p_value > UNLIKELY, line)


def chi_square_p(draws: int, device: str) -> float:
    """Draw tokens with many seeds for fixed logits. Returns the p-value of Pearson's chi-square test that they follow
    the softmax: how likely counts as unusual as these are if they do."""
    logits = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 2
    rows, counts = logits.to(device).repeat(1000, 1), torch.zeros(64, dtype=torch.float64)
    for first in range(0, draws, len(rows)):
        seeds = np.arange(first, first + len(rows))
        counts += torch.bincount(keyed_argmax(rows, seeds, seeds % 100).cpu(), minlength=64)
    expected = logits.double().softmax(0) * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor(63 / 2, dtype=torch.float64), statistic / 2))


# ---- tokens ----

LIMITS = (0, 1, 2, 5, 16, 32)  # draft limits in tokens; the requests take them in turn
PROMPTS, SIBLINGS, TOKENS = (31, 700, 31, 3720), 8, 192  # tokens of each problem's prompt, siblings, tokens a response
CPU_PROMPTS, CPU_SIBLINGS, CPU_TOKENS = (31, 70, 31, 40), 4, 32
LISTED = 20  # of the largest logits at each position, which are compared beside the emitted token's


def tokens(scale: Scale) -> Verdict:
    """Roll out, and compare."""
    prompts, siblings, length = scale.pick((PROMPTS, SIBLINGS, TOKENS), (CPU_PROMPTS, CPU_SIBLINGS, CPU_TOKENS))
    most = len(prompts) * siblings
    sizes = {"max_model_len": scale.pick(max(PROMPTS) + TOKENS, 512), "max_num_seqs": most, "max_logprobs": LISTED}
    options = {"exact": "bits", "budget": {"name": "fixed", "tokens": max(LIMITS)}}
    llm = build(scale, "das", THIN, options, gpu_memory_utilization=0.3, logprobs_mode="raw_logits", **sizes)
    if scale.gpu:  # vLLM's random weights are so small that all tokens are equally likely
        head = worker_of(llm).model_runner.get_model().lm_head.weight
        head.mul_(4.0 / head.float().std().item() / head.shape[1] ** 0.5)
    of_problems = [[3 + i, *(10 + j % 400 for j in range(size - 1))] for i, size in enumerate(prompts)]
    requests = dict(enumerate(prompt for prompt in of_problems for _ in range(siblings)))
    first, second = ({i: requests[i] for i in half} for half in (range(most // 2), range(most // 2, most)))
    alone = _roll_out(llm, requests, length, [0])[0]
    halves = _roll_out(llm, first, length, [0])[0] + _roll_out(llm, second, length, [0])[0]
    drafted, report = _roll_out(llm, requests, length, LIMITS)
    accepted, late = report["accepted"], report["launched_ahead"]
    wrong = "" if accepted else "NO DRAFTED TOKEN WAS ACCEPTED; "
    wrong += "" if late else "NO PASS BEGAN BEFORE ITS DRAFTS; "
    said = []
    for how, others in {"in halves": halves, "with drafts": drafted}.items():
        equal = sum(one == other for one, other in zip(alone, others, strict=True))
        scale.note(compared=how, equal=equal, tokens=len(alone))
        said.append(
            f"{'equal' if equal == len(alone) else 'DIFFERENT'} {how}: {equal} of {len(alone)} tokens and logits"
        )
    line = f"{wrong}{'; '.join(said)}; {accepted} of {report['drafted']} drafted tokens accepted, {late} late passes"
    return Verdict(not wrong and "DIFFERENT" not in line, line)


def _roll_out(
    llm: Any, prompts: dict[int, list[int]], length: int, limits: Sequence[int]
) -> tuple[list[tuple[int, dict[int, float]]], Row]:
    """Roll out requests. prompts: by request, whose number is its seed. limits: draft limits in tokens, which requests
    take in turn. Returns each token with the logits at its position, and the report."""
    from vllm import SamplingParams

    def parameters(number: int, prompt: list[int]) -> SamplingParams:
        # top-p sorts, and on CUDA a sort may depend on the number of rows (docs/exactness.md)
        draws = {"seed": number, "temperature": 1.0, "top_p": 0.95 if number % 3 == 0 else 1.0}
        extra = {PROBLEM_KEY: str(prompt[0]), LIMIT_KEY: limits[number % len(limits)]}
        return SamplingParams(**draws, max_tokens=length, ignore_eos=True, logprobs=LISTED, extra_args=extra)

    llm.reset_prefix_cache()
    llm.collective_rpc("das_begin_rollout", args=(len(prompts),))
    ids, asked = (
        [{"prompt_token_ids": ids} for ids in prompts.values()],
        [parameters(*each) for each in prompts.items()],
    )
    answers = [output.outputs[0] for output in llm.generate(ids, asked, use_tqdm=False)]
    report = llm.collective_rpc("das_end_rollout", args=(0,))[0]
    found = [pair for answer in answers for pair in zip(answer.token_ids, answer.logprobs, strict=True)]
    return [(token, {each: entry.logprob for each, entry in listed.items()}) for token, listed in found], report


# ---- grpo ----

COMPARED = "task=compare arms=[none,das] task.lock_step=false budget=fixed checkpoint.every=0 wandb=off"
ON_GPU = (  # without graphs, which take half a minute an arm to make
    "engine=gpu engine.processes=1 engine.max_model_len=1024 engine.gpu_memory_utilization=0.3 engine.exact=bits "
    "engine.enforce_eager=true"
)


def grpo(scale: Scale) -> Verdict:
    """Run task=compare, one arm after the other."""
    folder = scale.cache / "check_gpu" / "grpo"
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier call
    folder.mkdir(parents=True)
    settings = f"{COMPARED} {scale.pick(ON_GPU, 'setting=smoke')} trainer.max_steps=2".split()
    run = composed([*settings, f"cache={scale.cache}", f"out={folder}"])
    TASKS["compare"].load()(run_config(run.config), run, str(folder))
    result = json.loads((folder / "result.json").read_text())
    identical, arm = result["identical"]["das"], result["arms"]["das"]
    scale.note(identical=identical, tokens_per_pass=arm["tokens_per_pass"], accepted=arm["accepted"])
    drafted = arm["accepted"]["mean"] > 0
    same = all(equal for what, equal in identical.items() if what != "first_difference")
    return Verdict(same and drafted, ("" if drafted else "NO DRAFTED TOKEN WAS ACCEPTED; ") + identity_verdict(result))
