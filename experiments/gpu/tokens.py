"""The part `tokens` of task=check_gpu: with exact="bits" tokens and logits depend neither on drafts nor on the batch.

One engine with random weights rolls out the same requests, with the same seeds, three times: all together without
drafts, in halves without drafts, and with drafts of 0 to 32 tokens, which differ between requests. Its drafter
remembers the first rollouts, so most drafts are right. Passes begin before their drafts are known (late drafts), or the
part fails. On a GPU the model has 8B's width, so that it takes the kernels of 7B and 8B models: both of
FlashAttention's kernels (which change with the rows of a request), norms of more than 256 rows, contexts up to 4k.
"""

from collections.abc import Sequence
from typing import Any

from experiments.gpu.engines import THIN, build, sharpen
from experiments.gpu.scale import Scale, Verdict
from experiments.harness.agreement import LISTED, listed_response, sample_agreement

LIMITS = (0, 1, 2, 5, 16, 32)  # draft limits in tokens; the requests take them in turn
PROMPTS, SIBLINGS, TOKENS = (31, 700, 31, 3720), 8, 192  # tokens of each problem's prompt, siblings, tokens a response
CPU_PROMPTS, CPU_SIBLINGS, CPU_TOKENS = (31, 70, 31, 40), 4, 32


def tokens(scale: Scale) -> Verdict:
    """Roll out, and compare."""
    prompts, siblings, length = scale.pick((PROMPTS, SIBLINGS, TOKENS), (CPU_PROMPTS, CPU_SIBLINGS, CPU_TOKENS))
    llm = build(
        scale,
        "das",
        THIN,
        "bits",
        {"budget": {"name": "fixed", "tokens": max(LIMITS)}},
        gpu_memory_utilization=scale.pick(0.3, 0.1),
        max_model_len=scale.pick(max(PROMPTS) + TOKENS, 512),
        max_num_seqs=len(prompts) * siblings,
        logprobs_mode="raw_logits",
        max_logprobs=LISTED,
    )
    if scale.gpu:
        sharpen(llm)
    requests = [
        [3 + i, *(10 + j % 400 for j in range(size - 1))] for i, size in enumerate(prompts) for _ in range(siblings)
    ]
    half = len(requests) // 2
    alone, _ = _roll_out(llm, requests, length, [0])
    halves = _roll_out(llm, requests, length, [0], 0, half)[0] + _roll_out(llm, requests, length, [0], half)[0]
    drafted, rollout = _roll_out(llm, requests, length, LIMITS)
    report, accepted = rollout.report, rollout.accepted
    found = {"in halves": sample_agreement(alone, halves), "with drafts": sample_agreement(alone, drafted)}
    scale.note(**found, drafted=report.drafted, accepted=accepted, late_passes=report.launched_ahead)
    wrong = "" if accepted else "NO DRAFTED TOKEN WAS ACCEPTED; "
    wrong += "" if report.launched_ahead else "NO PASS BEGAN BEFORE ITS DRAFTS; "
    equal, said = True, []
    for how, each in found.items():
        bits, positions = each["positions_with_equal_logits"], each["positions"]
        equal &= each["sequences_agreeing"] == each["sequences"] and bits == positions
        said.append(
            f"{how} {each['sequences_agreeing']} of {each['sequences']} responses and {bits} of {positions} logits"
        )
    line = f"{wrong}equal: {'; '.join(said)}; {accepted} of {report.drafted} drafted tokens accepted"
    return Verdict(not wrong and equal, f"{line}, {report.launched_ahead} late passes")


def _roll_out(
    llm: Any, prompts: list[list[int]], length: int, limits: Sequence[int], first: int = 0, last: int | None = None
) -> tuple[list[dict[str, Any]], Any]:
    """Roll out the requests from `first` to `last`. limits: draft limits in tokens, which requests take in turn.
    Returns the responses with their logits, and the rollout."""
    from vllm import SamplingParams

    from das.engine.rollouts.rollout import RolloutRequest, roll_out
    from das.verify.admission import LIMIT_KEY

    class Limited(RolloutRequest):
        def parameters(self) -> list[Any]:
            parameters = super().parameters()
            for params in parameters:
                params.extra_args[LIMIT_KEY] = limits[params.seed % len(limits)]
                # top-p sorts, and on CUDA a sort may depend on the number of rows (docs/exactness.md)
                params.top_p = 0.95 if params.seed % 3 == 0 else 1.0
            return parameters

    llm.reset_prefix_cache()
    numbers = range(len(prompts))[first:last]
    outputs, rollout = roll_out(
        llm,
        Limited(
            [{"prompt_token_ids": prompts[i]} for i in numbers],
            SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=LISTED),
            [str(prompts[i][0]) for i in numbers],
            seeds=numbers,
            step=0,
            next_history_tick=0,
        ),
    )
    return list(map(listed_response, outputs)), rollout
