"""The part `speed` of task=check_gpu: how long does a rollout of an 8B shape take, and how does the device spend it?

Each arm has a process of its own, and rolls out the same responses (das/verify/forced.py); prompts are computed before.
`stock` is vLLM as it comes, in the trainer's process as TRL has it; `stock_core` has its core in a process of its own,
and das is compared with the faster of the two. `ngram` is vLLM's own n-gram drafter on the device, which drafts from a
request's own text alone, with vLLM's dynamic speculation: fewer drafted tokens the more requests run.

das rolls out three visits, and knows no responses in the first; other arms the last one, and `stock` all whose lengths
differ. After the timed visits a short rollout is profiled.
"""

from typing import Any

from das.engine.patches.replace import patch
from das.engine.settings import STOCK
from experiments.gpu.engines import build, kv_tokens, worker_of
from experiments.gpu.scale import Row, Scale, Verdict
from experiments.gpu.texts import VISITS, Work, works
from experiments.gpu.watch import Forced, profile
from experiments.run.errors import RunFailed
from experiments.training.recorded_engine import RecordedEngine, RecordedStockEngine

WARM, SHORT, PROFILED = 16, 96, range(24, 36)  # tokens of the first and last rollout; profiled passes of the last one
NGRAM = {"num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
# (first, last number of requests, drafted tokens of each), by what rows cost on an H200 (docs/benchmarks.md)
BY_LOAD = [(1, 16, 4), (17, 64, 2), (65, 128, 1), (129, 256, 0)]
NGRAM_GPU = {"method": "ngram_gpu", **NGRAM, "num_speculative_tokens_per_batch_size": BY_LOAD}
ENGINES: dict[str, Row] = {
    "stock": {"method": STOCK},
    "stock_core": {"method": STOCK, "apart": True},
    "das": {"method": "das"},
    "none": {"method": "none"},
    "ngram": {"method": STOCK, "speculative_config": NGRAM_GPU},
}
ON_CPU: dict[str, Row] = {
    # A pass of the tiny shape is too short to be worth a draft.
    "das": {"method": "das", "options": {"budget": {"name": "fixed", "tokens": 4}}},
    # vLLM has no kernels for CPUs: das's runner with vLLM's n-grams of the host.
    "ngram": {"method": "ngram", "options": {"speculative": NGRAM}},
}


def speed(scale: Scale, arm: str) -> Verdict:
    """Time one arm (experiments/gpu/parts.py)."""
    from das.engine.build import warm_up

    texts, made = works(scale), scale.pick(ENGINES, ENGINES | ON_CPU)[arm]
    longest = max(len(work.prompts[0]) + max(work.lengths) for work in texts)
    seats, longest = max(len(work.prompts) for work in texts), -(-longest // 128) * 128
    llm = build(scale, **made, max_num_seqs=seats, max_model_len=longest, enable_prefix_caching=True)
    warm_up(llm)
    scale.note(arm=arm, kv_tokens=kv_tokens(llm))
    engine, lines = _Engine(llm, arm), []
    for work in texts:
        engine.roll_out(work.first_tokens(WARM), 0)  # computes prompts, and compiles what is left
        if arm == "das":
            llm.collective_rpc("das_use_proposer", args=(work.name, None))
        every = arm == "das" or (arm.startswith(STOCK) and len(work.lengths) > 1)
        rows = [engine.roll_out(work, visit) for visit in range(0 if every else VISITS - 1, VISITS)]
        for row in rows:
            scale.note(**row)
        if arm == "das" and rows[-1]["tokens_per_pass"] <= 1:
            raise RunFailed(f"{work.name}: no drafted token was accepted")
        device: dict[str, float] = {}
        if arm != "stock_core":  # cannot be looked into
            with profile(llm, scale.pick(PROFILED, range(2, 5)), device):
                engine.roll_out(work.first_tokens(SHORT), 0)
        lines.append(_summed_up(scale, rows, device))
    if arm == "stock_core":
        llm.llm_engine.engine_core.shutdown()
    return Verdict(True, f"{arm}: {'; '.join(lines)}")


class _Engine:
    """An engine that emits recorded text. Unmodified vLLM emits as many tokens: without drafts the time of a pass does
    not depend on them. For its n-grams the text is forced."""

    def __init__(self, llm: Any, arm: str):
        self.llm, self.arm, self.keyed, self.held = llm, arm, arm in ("das", "none"), 0
        self.engine = (RecordedEngine if self.keyed else RecordedStockEngine)(llm)
        self.forced = Forced(llm) if arm == "ngram" else None
        if arm == "das":
            patch(worker_of(llm).das_runner.flights, "_draft", self._counted)

    def _counted(self, draft: Any, *args: Any) -> Any:
        drafts = draft(*args)
        self.held += sum(len(each) - each.count(0) for each in drafts)  # 0: a place without a draft
        return drafts

    def roll_out(self, work: Work, visit: int) -> Row:
        """Roll out a visit. Returns its line. Raises RunFailed if other tokens come, or of stock another number."""
        self.held, self.engine.recording, request = 0, work.recording, work.request(visit, self.keyed)
        texts = work.recording.of(request)
        if self.forced is not None:
            self.forced.begin(texts, len(work.prompts[0]), self.llm.request_counter.counter)
        rollout = self.engine.roll_out(request)[1]
        report, passes = rollout.report, rollout.report.passes
        rows = sum(report.step_tokens) - sum(report.step_live)
        if self.forced is not None:
            rows, self.held, passes = self.forced.rows_verified, int(self.forced.rows_held), self.forced.passes
            if rollout.responses != texts:
                raise RunFailed(f"{work.name}: other tokens than were to be emitted")
        return {
            **{"arm": self.arm, "work": work.name, "visit": visit + 1, "tokens": rollout.tokens},
            **{"rollout_s": rollout.rollout_s, "ms_a_pass": 1e3 * rollout.rollout_s / report.decode_steps},
            **{"tokens_per_pass": rollout.tokens / passes, "rows_verified": rows, "rows_held": self.held},
            "late_passes": report.launched_ahead,
            "host_draft_ms_a_pass": 1e3 * report.draft_s / report.decode_steps,
        }


def _summed_up(scale: Scale, rows: list[Row], device: dict[str, float]) -> str:
    """Notes the summary of one work, with each visit's time over the faster stock's. Returns its words."""
    last, stocks = rows[-1], dict[int, float]()  # by visit
    for row in scale.noted(arm="stock", work=last["work"]) + scale.noted(arm="stock_core", work=last["work"]):
        stocks[row["visit"]] = min(row["rollout_s"], stocks.get(row["visit"], row["rollout_s"]))
    seconds = [row["rollout_s"] for row in rows]
    ratios = [row["rollout_s"] / stocks.get(row["visit"], stocks[VISITS]) for row in rows] if stocks else []
    scale.note(summary=last["arm"], work=last["work"], seconds=seconds, to_faster_stock=ratios, **device)
    said = [f"{last['work']}: {' '.join(f'{each:.2f}' for each in seconds)} s"]
    said += [f"{' '.join(f'{each:.2f}' for each in ratios)} of the faster stock"] if stocks else []
    said += [f"{last['tokens_per_pass']:.2f} tokens and {last['ms_a_pass']:.1f} ms a pass"]
    said += [f"{name.replace('_', ' ')} {share:.0%}" for name, share in device.items()]
    return ", ".join(said)
