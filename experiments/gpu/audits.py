"""Checks that tokens and logits do not depend on drafts, on the batch, or on the engine's sleep mode.

One engine with random weights rolls out the same requests, with the same seeds, three times: all together without
drafts, in halves without drafts, and with drafts of 0 to 32 tokens, which differ between requests. Its drafter
remembers the first rollouts, so most drafts are right, and a request has 0 to 32 extra rows in a pass (vllm#54506).
On a GPU the model has 8B's width, so that it takes the kernels of 7B and 8B models: both of
FlashAttention's kernels (which change with the rows of a request), norms of more than 256 rows, contexts up to 4k.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from experiments.gpu.engines import build, sharpen
from experiments.gpu.layers import differing_operation, first_difference
from experiments.gpu.verdict import Scale, Verdict
from experiments.harness.agreement import LISTED, listed_response, sample_agreement

LIMITS = (0, 1, 2, 5, 16, 32)  # draft limits in tokens; the requests take them in turn
PROBLEMS, SIBLINGS = 4, 8
SHAPE = "8b_thin"  # on a GPU
PROMPTS = (31, 700, 31, 3720)  # tokens of each problem's prompt on a GPU
TOKENS = 192  # tokens of a response on a GPU
CPU_SIBLINGS, CPU_PROMPTS = 4, (31, 70, 31, 40)


def audit(scale: Scale, form: str | None = None) -> Verdict:
    """Do the check of this module with batch-invariant kernels. form: how the engine is built (engines.FORMS), in place
    of the usual form; without graphs the line names the operation in which logits first differ."""
    scale = scale if form is None else replace(scale, form=form)
    llm = _engine(scale)
    alone, _ = _roll_out(llm, scale, [0])
    scale.note({"alone": len(alone)})
    halves, _ = _roll_out(llm, scale, [0], groups=2)
    drafted, report = _roll_out(llm, scale, LIMITS)
    none, drafts = sample_agreement(alone, halves), sample_agreement(alone, drafted)
    scale.note({"none": none, "drafts": drafts})
    roll_out = partial(_roll_out, llm, scale)
    plans = {
        "halves": (halves, partial(roll_out, [0], groups=2)),
        "drafts": (drafted, partial(roll_out, LIMITS)),
    }
    differences = {
        name: _difference(llm, scale, alone, responses, partial(roll_out, [0]), again)
        for name, (responses, again) in plans.items()
    }
    tokens = sum(len(response["tokens"]) for response in drafted)
    accepted = tokens - report["passes"]
    same = all(found["sequences_agreeing"] == found["sequences"] for found in (none, drafts))
    bits = all(found["positions_with_equal_logits"] == found["positions"] for found in (none, drafts))
    idle = "" if accepted else "NO DRAFTED TOKEN WAS ACCEPTED; "
    line = (
        f"{idle}none against none in halves: {_agreement(none)}; none against drafts: {_agreement(drafts)}, "
        f"{accepted} of {report['drafted']} drafted tokens accepted"
        + "".join(f"; FIRST DIFFERENCE in {name}: {found}" for name, found in differences.items() if found)
    )
    numbers = {
        "none": none,
        "drafts": drafts,
        "accepted": accepted,
        "drafted": report["drafted"],
        "logits_equal": bits,
        "first_difference": differences,
    }
    return Verdict(not idle and same and bits, line, numbers)


def _difference(
    llm: Any, scale: Scale, one: Any, other: Any, roll_out: Callable[[], Any], again: Callable[[], Any]
) -> dict[str, Any] | None:
    """Returns the earliest difference of two rollouts: request, position and, without graphs, rows and operation; None
    if there is none. Writes it as a line at once. roll_out, again: repeat the rollouts."""
    found: dict[str, Any] | None = first_difference(one, other)
    if found is not None:
        found["graphs"] = not llm.llm_engine.vllm_config.model_config.enforce_eager
        if not found["graphs"]:
            problem, sibling = divmod(found["request"], scale.pick(SIBLINGS, CPU_SIBLINGS))
            position = scale.pick(PROMPTS, CPU_PROMPTS)[problem] + found["position"] - 1
            found |= differing_operation(llm, _seed(problem, sibling), position, roll_out, again)
    scale.note({"first_difference": found})
    return found


def _seed(problem: int, sibling: int) -> int:
    return 100 * problem + sibling


def _agreement(found: dict[str, Any]) -> str:
    return (
        f"{found['sequences_agreeing']} of {found['sequences']} sequences agree, logits at "
        f"{found['positions_with_equal_logits']} of {found['positions']} positions (largest difference "
        f"{found['largest_logit_difference']:.2g})"
    )


def _engine(scale: Scale, method: str = "das", shape: str = SHAPE, **sizes: Any) -> Any:
    """Builds an engine with batch-invariant kernels that reports raw logits."""
    llm = build(
        scale,
        method,
        shape,
        {"budget": {"name": "fixed", "tokens": max(LIMITS)}},
        invariant=True,
        gpu_memory_utilization=scale.pick(0.3, 0.1),
        max_model_len=scale.pick(max(PROMPTS) + TOKENS, 512),
        max_num_seqs=PROBLEMS * SIBLINGS,
        logprobs_mode="raw_logits",
        max_logprobs=LISTED,
        **sizes,
    )
    if scale.gpu and shape == SHAPE:
        sharpen(llm)
    return llm


def _roll_out(llm: Any, scale: Scale, limits: Any, groups: int = 1) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Roll out all requests, divided into `groups` batches. limits: draft limits in tokens, which the requests take in
    turn. Returns the responses, and the counts of drafted tokens, summed over the batches."""
    from vllm import SamplingParams

    from das.verify.admission import LIMIT_KEY, PROBLEM_KEY

    llm.reset_prefix_cache()
    requests = [
        (problem, sibling) for problem in range(PROBLEMS) for sibling in range(scale.pick(SIBLINGS, CPU_SIBLINGS))
    ]
    params = [
        SamplingParams(
            seed=_seed(problem, sibling),
            temperature=1.0,
            max_tokens=scale.pick(TOKENS, 32),
            ignore_eos=True,
            detokenize=False,
            logprobs=LISTED,
            # top-p sorts, and on CUDA a sort may depend on the number of rows (docs/exactness.md)
            top_p=0.95 if i % 3 == 0 else 1.0,
            extra_args={PROBLEM_KEY: f"{problem}", LIMIT_KEY: limits[i % len(limits)]},
        )
        for i, (problem, sibling) in enumerate(requests)
    ]
    lengths = scale.pick(PROMPTS, CPU_PROMPTS)
    prompts: list[Any] = [
        {"prompt_token_ids": [3 + problem, *(10 + i % 400 for i in range(lengths[problem] - 1))]}
        for problem, _ in requests
    ]
    responses: list[dict[str, Any]] = []
    llm.collective_rpc("das_begin_rollout", args=(len(requests),))
    size = len(requests) // groups
    for first in range(0, len(requests), size):
        outputs = llm.generate(prompts[first : first + size], params[first : first + size], use_tqdm=False)
        responses += map(listed_response, outputs)
    (report,) = llm.collective_rpc("das_end_rollout", args=(0,))
    return responses, report


def wake(llm: Any) -> None:
    """Wake an engine that slept at level 2, in TRL's order: the weights, which are loaded again, then the cache."""
    llm.wake_up(tags=["weights"])
    llm.collective_rpc("reload_weights")
    llm.wake_up(tags=["kv_cache"])


def sleep(scale: Scale) -> Verdict:
    """Check that sleep mode at level 2, which TRL uses, frees the engine's memory, weights included, and changes no
    token afterwards. CPUs have no sleep mode."""
    from das.errors import EngineError
    from das.trl.engines.in_process import require_sleep_mode

    try:
        require_sleep_mode()
    except EngineError as refused:
        return Verdict(not scale.gpu, f"refused, as the docs say: {refused}")
    import torch

    # The weights lie on disk, from where they are loaded again.
    llm = _engine(scale, "none", "0.6b", enable_sleep_mode=True, load_format="auto")
    before, _ = _roll_out(llm, scale, [0])
    awake = torch.cuda.mem_get_info()[0]
    llm.sleep(level=2)
    given_back = (torch.cuda.mem_get_info()[0] - awake) / 2**30
    wake(llm)
    after, _ = _roll_out(llm, scale, [0])
    found = sample_agreement(before, after)
    line = f"{given_back:.1f} GiB given back while it slept; afterwards {_agreement(found)}"
    same = found["sequences_agreeing"] == found["sequences"]
    return Verdict(same and given_back > 1, line, {"given_back_gib": given_back, "agreement": found})
