"""The part `passes` of task=check_gpu: seconds of a decode pass by live requests, drafted rows and context.

Each request has a prompt of its own: one that many share is read from the device's L2 cache, which makes long contexts
look cheap. latency.json is what task.latency of task=advise reads.
"""

from statistics import median
from typing import Any

from experiments.gpu.engines import SHAPE, build, kv_tokens, worker_of
from experiments.gpu.scale import Scale, Verdict

# Tokens of context -> live requests. The keys and values of 64 requests with 8k tokens take 77 GB.
LIVE: dict[int, tuple[int, ...]] = {350: (1, 16, 64, 256), 2048: (1, 16, 64), 8192: (1, 16, 64)}
CPU_LIVE: dict[int, tuple[int, ...]] = {16: (1, 2), 48: (1, 2), 96: (1, 2)}
DRAFTS, PASSES, ROOM = (0, 2, 4, 8), 10, 256  # drafted tokens of each request; timed passes; tokens of a response


def passes(scale: Scale) -> Verdict:
    """Time the passes, and fit the forms of task=calibrate to them."""
    from das.budget.fixed import Fixed, NoDrafts
    from experiments.harness.pass_timing import RandomDrafter, add_requests, made_up_prompts, timed_passes
    from experiments.run.run_folder import device_name
    from experiments.simulate.latency_files import write_latency

    live_of, drafts_of, count = scale.pick(LIVE, CPU_LIVE), scale.pick(DRAFTS, (0, 2)), scale.pick(PASSES, 3)
    most_live, longest = max(map(max, live_of.values())), max(drafts_of)
    llm = build(
        scale,
        "das",
        das_options={"budget": {"name": "fixed", "tokens": longest}},
        gpu_memory_utilization=scale.pick(0.9, 0.1),
        max_num_seqs=most_live,
        max_model_len=max(live_of) + 2 * ROOM,
        enable_prefix_caching=True,  # a prompt is computed once
    )
    engine, runner = llm.llm_engine, worker_of(llm).das_runner
    drafting = runner.flights.drafter.draft_round
    drafting.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    rows: list[list[float]] = []
    cells: list[str] = []
    held = {  # by the KV cache
        context: [live for live in lives if live * (context + ROOM) <= kv_tokens(llm)]
        for context, lives in live_of.items()
    }
    for context, lives in held.items():
        for live in lives:
            for drafts in sorted({min(each, drafting.max_rows // live - 1) for each in drafts_of}):  # in one graph
                drafting.budget = Fixed(drafts) if drafts else NoDrafts()
                names = add_requests(engine, made_up_prompts(context, live), f"{context}-{live}-{drafts}", ROOM)
                timed = timed_passes(engine, runner, live, drafts, count)
                engine.abort_request(names)
                while engine.has_unfinished_requests():
                    engine.step()
                rows += [[live, tokens, live * context, seconds] for _, tokens, _, seconds in timed]
                ms = 1e3 * median(row[-1] for row in timed)
                scale.note(context=context, live=live, drafts=drafts, ms=ms)
                cells.append(f"{live} x {drafts} at {context} {ms:.1f}")
    common = set.intersection(*map(set, held.values()))  # tables need each number of requests at each context
    rows = [row for row in rows if row[0] in common]
    source = f"vLLM, random weights of shape {scale.pick(SHAPE, 'tiny')} on {device_name()}"
    error: Any = write_latency(scale.folder / "latency.json", rows, source)["drafting"]["error"]
    return Verdict(
        True, f"ms a pass, live x drafted at context: {', '.join(cells)}; error of the fitted form {error:.0%}"
    )
