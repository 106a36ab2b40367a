"""The part `memory` of task=check_gpu: do das's passes stay within the memory that the engine reserved for them?

The worst case: all seats are taken, passes have as many drafted tokens as das allows, and top-p sorts all rows.
"""

from experiments.gpu.engines import THIN, build, kv_tokens, roll_out, worker_of
from experiments.gpu.scale import Scale, Verdict

SEATS, SHARE = 256, 0.9  # requests; the share of the device's memory that the engine may take


def memory(scale: Scale) -> Verdict:
    """Roll out, and compare what the device then holds with what the engine may take. No pass may be too large."""
    import torch
    from vllm import SamplingParams

    from das.budget.policies import Fixed
    from experiments.measure.pass_timing import RandomDrafter

    seats = scale.pick(SEATS, 8)
    llm = build(scale, "das", THIN, gpu_memory_utilization=SHARE, max_num_seqs=seats, max_model_len=512)
    drafting = worker_of(llm).das_runner.flights.drafter.draft_round
    drafting.drafter = RandomDrafter(llm.llm_engine.model_config.get_vocab_size())
    drafting.budget = Fixed(drafting.max_draft_tokens)
    params = SamplingParams(temperature=1.0, top_p=0.95, max_tokens=24, ignore_eos=True, logprobs=0, detokenize=False)
    report = roll_out(llm, [[i, 1, 2] for i in range(seats)], [params] * seats)[1]
    rows, (free, total) = max(report["step_tokens"]), torch.cuda.mem_get_info() if scale.gpu else (1, 1)
    used, allowed = (total - free) / 2**30, SHARE * total / 2**30
    scale.note(rows=rows, used_gib=used, allowed_gib=allowed, kv_tokens=kv_tokens(llm))
    line = f"{rows} rows with top-p in a pass: {used:.1f} GiB of the device are used, {allowed:.1f} allowed"
    return Verdict(used <= allowed, line + ("" if scale.gpu else " (a CPU has none)"))
