"""Two parts of task=check_gpu about passes.

passes   seconds of a decode pass by live requests, drafted rows and context. Each request has a prompt of its own: one
         that many share is read from the device's L2 cache, which makes long contexts look cheap. latency.json is what
         task.latency of task=advise reads.
memory   do das's passes stay within the memory that the engine reserved for them? The worst case: all seats are taken,
         passes have as many drafted tokens as das allows, and top-p sorts all rows.
"""

from statistics import median

from experiments.gpu.engines import SHAPE, THIN, Row, Scale, Verdict, build, kv_tokens, roll_out, worker_of

# Tokens of context -> live requests. The keys and values of 64 requests with 8k tokens take 77 GB.
LIVE: dict[int, tuple[int, ...]] = {350: (1, 16, 64, 256), 2048: (1, 16, 64), 8192: (1, 16, 64)}
CPU_LIVE: dict[int, tuple[int, ...]] = {16: (1, 2), 48: (1, 2), 96: (1, 2)}
DRAFTS, PASSES, ROOM = (0, 2, 4, 8), 10, 256  # drafted tokens of each request; timed passes; tokens of a response


def passes(scale: Scale) -> Verdict:
    """Time the passes, and fit the forms of task=calibrate to them."""
    from experiments.measure.calibrate import RandomDrafter, timed_combination
    from experiments.run.run_folder import device_name
    from experiments.simulate.times import write_latency

    live_of, drafts_of, count = scale.pick(LIVE, CPU_LIVE), scale.pick(DRAFTS, (0, 2)), scale.pick(PASSES, 3)
    budget, most = {"name": "fixed", "tokens": max(drafts_of)}, max(map(max, live_of.values()))
    sizes: Row = {"max_num_seqs": most, "max_model_len": max(live_of) + 2 * ROOM, "gpu_memory_utilization": 0.9}
    # A prompt is computed once.
    llm = build(scale, "das", options={"budget": budget}, enable_prefix_caching=True, **sizes)
    engine, runner = llm.llm_engine, worker_of(llm).das_runner
    drafting = runner.flights.drafter.draft_round
    drafting.drafter = RandomDrafter(engine.model_config.get_vocab_size())
    held = {  # by the KV cache
        context: [live for live in lives if live * (context + ROOM) <= kv_tokens(llm)]
        for context, lives in live_of.items()
    }
    common = set.intersection(*map(set, held.values()))  # tables need each number of requests at each context
    rows, cells = list[list[float]](), list[str]()
    for context, live in [(context, live) for context, lives in held.items() for live in lives]:
        prompts = [{"prompt_token_ids": [i, *([1] * (context - 1))]} for i in range(live)]
        for drafts in sorted({min(each, drafting.max_rows // live - 1) for each in drafts_of}):  # in one graph
            timed = timed_combination(engine, runner, prompts, drafts, f"{context}-{live}-{drafts}", ROOM, count)
            rows += [[live, tokens, live * context, s] for _, tokens, _, s in timed if live in common]
            ms = 1e3 * median(row[-1] for row in timed)
            scale.note(context=context, live=live, drafts=drafts, ms=ms)
            cells.append(f"{live} x {drafts} at {context} {ms:.1f}")
    source = f"vLLM, random weights of shape {scale.pick(SHAPE, 'tiny')} on {device_name()}"
    error = write_latency(scale.folder / "latency.json", rows, source)["drafting"]["error"]
    said = f"ms a pass, live x drafted at context: {', '.join(cells)}; error of the fitted form {error:.0%}"
    return Verdict(True, said)


# ---- memory ----

SEATS, SHARE = 256, 0.9  # requests; the share of the device's memory that the engine may take


def memory(scale: Scale) -> Verdict:
    """Roll out, and compare what the device then holds with what the engine may take. No pass may be too large."""
    import torch
    from vllm import SamplingParams

    from das.budget.policies import Fixed
    from experiments.measure.calibrate import RandomDrafter

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
