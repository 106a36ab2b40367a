"""Does das run on this device at all? An engine that drafts, and one that does not, roll out a few requests.

Three parts of task=check_gpu try this with engines that ask for less and less of the device (engines.FORMS). The first
form that works is the one in which the further parts build theirs.
"""

import gc
from dataclasses import replace
from typing import Any

from experiments.gpu.engines import build, sharpen
from experiments.gpu.verdict import Scale, Verdict

SHAPE = "0.6b"
REQUESTS, TOKENS, DRAFTED = 16, 64, 4


def first_tokens(scale: Scale, form: str) -> Verdict:
    """Roll out the same requests three times with das, whose drafts are right from the second time on, and once with
    `none`. form: a key of FORMS."""
    scale = replace(scale, form=form)
    share = scale.pick(0.2, 0.1)
    sizes: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": REQUESTS, "gpu_memory_utilization": share}
    responses: dict[str, Any] = {}
    accepted = drafted = passes = 0
    for method in ("das", "none"):
        budget = {"budget": {"name": "fixed", "tokens": DRAFTED}} if method == "das" else {}
        llm = build(scale, method, SHAPE, budget, **sizes)
        if scale.gpu:
            sharpen(llm)
        scale.note({"built": method, "form": form})
        for step in range(3 if method == "das" else 1):
            rollout = _rolled(llm, step)
            responses.setdefault(method, rollout.responses)
            scale.note({"method": method, "step": step, "rollout_s": rollout.rollout_s, "tokens": rollout.tokens})
            if step:
                accepted += rollout.accepted
                drafted += rollout.report.drafted
                passes += rollout.report.passes
        del llm
        gc.collect()
    equal = sum(one == other for one, other in zip(responses["das"], responses["none"], strict=True))
    idle = "" if accepted else "NO DRAFTED TOKEN WAS ACCEPTED; "
    line = (
        f"{idle}{form}: {accepted} of {drafted} drafted tokens accepted in {passes} passes; {equal} of {REQUESTS} "
        "first responses equal those of none"
    )
    return Verdict(not idle, line, {"form": form, "accepted": accepted, "drafted": drafted, "equal": equal})


def _rolled(llm: Any, step: int) -> Any:
    from vllm import SamplingParams

    from das.engine.rollouts.rollout import RolloutRequest, roll_out

    request = RolloutRequest(
        [{"prompt_token_ids": [3 + i // 8, *range(10, 40)]} for i in range(REQUESTS)],
        SamplingParams(temperature=1.0, max_tokens=TOKENS, ignore_eos=True, logprobs=0),
        [f"{i // 8}" for i in range(REQUESTS)],
        seeds=list(range(REQUESTS)),
        step=step,
        next_history_tick=step,
    )
    return roll_out(llm, request)[1]
