"""The part `tokens` of task=check_gpu: with exact="bits" tokens and logits depend neither on drafts nor on the batch.

One engine with random weights rolls out the same requests, with the same seeds, three times: all together without
drafts, in halves without drafts, and with drafts of 0 to 32 tokens, which differ between requests. Its drafter
remembers the first rollouts, so most drafts are right. Passes begin before their drafts are known (late drafts), or the
part fails. On a GPU the model has 8B's width, so that it takes the kernels of 7B and 8B models: both of
FlashAttention's kernels (which change with the rows of a request), norms of more than 256 rows, contexts up to 4k.
"""

from collections.abc import Sequence
from typing import Any

from das.verify.admission import LIMIT_KEY, PROBLEM_KEY
from experiments.gpu.engines import THIN, build, roll_out, worker_of
from experiments.gpu.scale import Row, Scale, Verdict

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
    outputs, report = roll_out(llm, list(prompts.values()), [parameters(*each) for each in prompts.items()])
    answers = [output.outputs[0] for output in outputs]
    found = [pair for answer in answers for pair in zip(answer.token_ids, answer.logprobs, strict=True)]
    return [(token, {each: entry.logprob for each, entry in listed.items()}) for token, listed in found], report
