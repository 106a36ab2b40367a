"""The part `pass_times` of task=check_gpu: seconds of a decode pass by live requests and drafted tokens, 8B shape.

They are those of an engine without batch-invariant kernels. latency.json is what task.latency of task=replay and
task=advise reads.
"""

import statistics
from typing import Any

from experiments.gpu.engines import build
from experiments.gpu.verdict import Scale, Verdict

SHAPE = "8b"
LIVE, DRAFTS, CONTEXT, PASSES = (1, 16, 64, 256), (0, 4, 8), 1024, 12
CPU_LIVE, CPU_DRAFTS, CPU_CONTEXT, CPU_PASSES = (1, 2), (0, 2), 16, 3


def pass_times(scale: Scale) -> Verdict:
    """Time the passes, and fit the forms of task=calibrate to them."""
    from das.budget.fixed import Fixed, NoDrafts
    from experiments.harness.pass_timing import WARM_UP, RandomDrafter, add_requests, made_up_prompts
    from experiments.run.run_folder import device_name
    from experiments.simulate.latency_files import write_latency

    live_of, drafts_of = scale.pick((LIVE, DRAFTS), (CPU_LIVE, CPU_DRAFTS))
    context, count = scale.pick((CONTEXT, PASSES), (CPU_CONTEXT, CPU_PASSES))
    longest = max(drafts_of)
    llm = build(
        scale,
        "das",
        SHAPE,
        {"budget": {"name": "fixed", "tokens": longest}},
        max_num_seqs=max(live_of),
        max_model_len=2 * context + 512,
        max_num_batched_tokens=scale.pick(8448, 1024),
    )
    engine = llm.llm_engine
    runner = engine.engine_core.engine_core.model_executor.driver_worker.worker.das_runner
    runner.drafter.draft_round.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    most = runner.drafter.draft_round.max_rows  # of a pass that is a graph
    rows: list[list[float]] = []
    cells: dict[str, float] = {}
    for live in live_of:
        for drafts in sorted({min(each, most // live - 1) for each in drafts_of}):
            runner.drafter.draft_round.budget = Fixed(drafts) if drafts else NoDrafts()
            names = add_requests(engine, made_up_prompts(context, live), f"{live}-{drafts}", context)
            timed = _seconds(engine, runner, live, live * (1 + drafts), WARM_UP + count)[WARM_UP:]
            engine.abort_request(names)
            while engine.has_unfinished_requests():
                engine.step()
            rows += [[live, live * (1 + drafts), live * context, seconds] for seconds in timed]
            cells[f"{live} x {drafts}"] = 1e3 * statistics.median(timed)
            scale.note({"live": live, "drafts": drafts, "ms": cells[f"{live} x {drafts}"]})
    source = f"vLLM, random weights of shape {scale.pick(SHAPE, 'tiny')} on {device_name()}"
    forms = write_latency(scale.folder / "latency.json", rows, source)
    error: Any = forms["drafting"]["error"]
    line = "ms a pass by live x drafted: " + ", ".join(f"{cell} {ms:.1f}" for cell, ms in cells.items())
    return Verdict(True, f"{line}; error of the fitted form {error:.0%}", {"ms": cells, "forms": forms})


def _seconds(engine: Any, runner: Any, live: int, tokens: int, count: int) -> list[float]:
    """Returns the seconds of passes with `live` requests and `tokens` rows, each behind another such pass: from the end
    of one to the end of the next."""
    meter, first = runner.meter, len(runner.meter.step_live)
    found: list[float] = []
    while len(found) < count:
        assert engine.has_unfinished_requests(), f"responses ended before {count} passes were timed"
        engine.step()
        full = [
            meter.step_live[i] == live and meter.step_tokens[i] == tokens for i in range(first, len(meter.step_live))
        ]
        ends = meter.step_time_s[first:]
        found = [ends[i] - ends[i - 1] for i in range(1, len(full)) if full[i] and full[i - 1]]
    return found
