"""The part `speed` of task=check_gpu: how long does a rollout of an 8B shape take, and how does the device spend it?

Each arm has a process of its own, and rolls out the same responses (das/verify/forced.py); prompts are computed before.
`stock` is vLLM as it comes, in the trainer's process as TRL has it; `stock_core` has its core in a process of its own,
and das is compared with the faster of the two. `ngram` is vLLM's own n-gram drafter on the device, which drafts from a
request's own text alone, with vLLM's dynamic speculation: fewer drafted tokens the more requests run.

das rolls out three visits, and knows no responses in the first; other arms the last one, and `stock` all whose lengths
differ. After the timed visits a short rollout is profiled.
"""

from typing import Any

from das.engine.settings import STOCK
from experiments.gpu.engines import build, kv_tokens
from experiments.gpu.scale import Row, Scale, Verdict
from experiments.gpu.texts import VISITS, Work, works
from experiments.gpu.watch import Watch, profile

WARM, SHORT, PROFILED = 16, 96, range(24, 36)  # tokens of the first and last rollout; profiled passes of the last one
NGRAM = {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
NGRAM_GPU = {
    "method": "ngram_gpu",
    **NGRAM,
    # (first, last number of requests, drafted tokens of each), by what rows cost on an H200 (docs/benchmarks.md)
    "num_speculative_tokens_per_batch_size": [(1, 16, 4), (17, 64, 2), (65, 128, 1), (129, 256, 0)],
}


def speed(scale: Scale, arm: str) -> Verdict:
    """Time one arm (experiments/gpu/parts.py)."""
    from das.engine.build import warm_up

    texts = works(scale)
    # A pass of the tiny shape is too short to be worth a draft.
    options = {"budget": {"name": "fixed", "tokens": 4}} if arm == "das" and not scale.gpu else {}
    llm = _engine(scale, arm, texts, options)
    warm_up(llm)
    scale.note(arm=arm, kv_tokens=kv_tokens(llm))
    watch = Watch(llm, arm == "ngram") if arm in ("das", "ngram") else None
    lines, wrong = [], ""
    for work in texts:
        _roll_out(llm, arm, work.first_tokens(WARM), 0, watch)  # computes prompts, and compiles what is left
        if arm == "das":
            llm.collective_rpc("das_use_proposer", args=(work.name, None))
        every = arm == "das" or (arm.startswith(STOCK) and not work.is_even)
        rows = [_timed(scale, arm, llm, work, i, watch) for i in range(0 if every else VISITS - 1, VISITS)]
        wrong += "" if all(row["equal"] for row in rows) else "OTHER TOKENS THAN WERE TO BE EMITTED; "
        wrong += "" if arm != "das" or rows[-1]["tokens_per_pass"] > 1 else "NO DRAFTED TOKEN WAS ACCEPTED; "
        device: dict[str, float] = {}
        if arm != "stock_core":  # cannot be looked into
            with profile(llm, scale.pick(PROFILED, range(2, 5)), device):
                _roll_out(llm, arm, work.first_tokens(SHORT), 0, watch)
        lines.append(_summed_up(scale, arm, work.name, rows, device))
    if arm == "stock_core":
        llm.llm_engine.engine_core.shutdown()
    return Verdict(not wrong, f"{arm}: {wrong}{'; '.join(lines)}")


def _engine(scale: Scale, arm: str, texts: list[Work], options: dict[str, Any]) -> Any:
    longest = max(len(work.prompts[0]) + max(map(len, texts)) for work in texts for texts in work.visits)
    sizes: dict[str, Any] = {
        "max_num_seqs": max(len(work.prompts) for work in texts),
        "max_model_len": -(-longest // 128) * 128,
        "enable_prefix_caching": True,
    }
    if arm == "ngram" and scale.gpu:
        return build(scale, STOCK, speculative_config=NGRAM_GPU, **sizes)
    if arm == "ngram":  # vLLM has no kernels for CPUs: das's runner with vLLM's n-grams of the host
        return build(scale, arm, das_options={"speculative": NGRAM}, **sizes)
    method = STOCK if arm.startswith(STOCK) else arm
    return build(scale, method, das_options=options, own_process=arm == "stock_core", **sizes)


def _roll_out(llm: Any, arm: str, work: Work, visit: int, watch: Watch | None) -> Any:
    """Roll out a visit. Unmodified vLLM emits the recorded number of tokens: without drafts the time of a pass does not
    depend on its tokens. For its n-grams the texts are forced (Watch)."""
    from vllm import SamplingParams

    from das.engine.patches.front_end import let_force
    from das.engine.rollouts.rollout import RolloutRequest, request_seed, roll_out
    from das.verify.admission import FORCED_KEY
    from experiments.training.stock import roll_out_stock

    texts, keyed = work.visits[visit], arm in ("das", "none")

    class Forced(RolloutRequest):
        def parameters(self) -> list[Any]:
            parameters = super().parameters()
            for i, params in enumerate(parameters):
                params.extra_args[FORCED_KEY] = f"{i}"
                # The limit is the same for all, so that the budget cannot learn the length of a response.
                params.max_tokens = longest if keyed else len(texts[i])
            return parameters

    longest, ending = max(map(len, texts)), {"stop_token_ids": [work.end]} if keyed else {"ignore_eos": True}
    if watch is not None:
        watch.begin(texts if arm == "ngram" else ())
    request = Forced(
        [{"prompt_token_ids": list(prompt)} for prompt in work.prompts],
        SamplingParams(temperature=1.0, logprobs=0, **ending),  # TRL asks for log-probs
        work.problems,
        seeds=[request_seed(0, visit, i) for i in range(len(texts))],
        step=visit,
        next_history_tick=visit + 1,
    )
    if not keyed:
        return roll_out_stock(llm, request)[1]
    let_force(llm)
    llm.collective_rpc("das_force", args=({f"{i}": text for i, text in enumerate(texts)}, {}))
    return roll_out(llm, request)[1]


def _timed(scale: Scale, arm: str, llm: Any, work: Work, visit: int, watch: Watch | None) -> Row:
    """Rolls out a visit, and notes its line."""
    rollout = _roll_out(llm, arm, work, visit, watch)
    report, texts = rollout.report, work.visits[visit]
    equal = rollout.responses == texts
    if arm.startswith(STOCK):  # emits other tokens
        equal = [len(each) for each in rollout.responses] == [len(text) for text in texts]
    row = {
        "arm": arm,
        "work": work.name,
        "visit": visit + 1,
        "rollout_s": rollout.rollout_s,
        "tokens": rollout.tokens,
        "passes": report.decode_steps,
        "ms_a_pass": 1e3 * rollout.rollout_s / report.decode_steps,
        "tokens_per_pass": rollout.tokens / (watch.request_passes if arm == "ngram" and watch else report.passes),
        "rows_verified": 0 if watch is None else watch.rows_verified,
        "rows_held": 0 if watch is None else watch.rows_held,
        "late_passes": report.launched_ahead,
        "host_draft_ms_a_pass": 1e3 * report.draft_s / report.decode_steps,
        "equal": equal,
    }
    scale.note(**row)
    return row


def _summed_up(scale: Scale, arm: str, work: str, rows: list[Row], device: dict[str, float]) -> str:
    """Notes the summary of one work, with each visit's time over the faster stock's. Returns its words."""
    stocks: dict[int, float] = {}  # by visit
    for row in scale.noted(arm="stock", work=work) + scale.noted(arm="stock_core", work=work):
        stocks[row["visit"]] = min(row["rollout_s"], stocks.get(row["visit"], row["rollout_s"]))
    seconds = [row["rollout_s"] for row in rows]
    ratios = [row["rollout_s"] / stocks.get(row["visit"], stocks[VISITS]) for row in rows] if stocks else []
    scale.note(summary=arm, work=work, seconds=seconds, to_faster_stock=ratios, **device)
    last = rows[-1]
    line = f"{work}: {' '.join(f'{each:.2f}' for each in seconds)} s, {last['ms_a_pass']:.1f} ms a pass"
    if last["rows_verified"]:
        line += (
            f", {last['tokens_per_pass']:.2f} tokens a pass, {last['rows_held']} of {last['rows_verified']} rows held"
        )
    if device:
        line += f", device busy {device['device_share']:.0%}, waits for drafts {device['wait_ms']:.1f} ms a pass"
    return line + (f", {' '.join(f'{each:.2f}' for each in ratios)} of the faster stock" if stocks else "")
