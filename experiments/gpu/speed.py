"""Two parts of task=check_gpu about times, with an 8B shape.

speed    how long does a rollout take, and how does the device spend it?
passes   seconds of a decode pass by live requests, drafted rows and context. Each request has a prompt of its own: one
         that many share is read from the device's L2 cache, which makes long contexts look cheap. latency.json is what
         task.latency of task=advise reads.

In `speed` each arm has a process of its own, and rolls out the same responses (das/verify/forced.py); prompts are
computed before. `stock` is vLLM as it comes, in the trainer's process as TRL has it; `stock_core` has its core in a
process of its own, and das is compared with the faster of the two. `ngram` is vLLM's own n-gram drafter on the device,
which drafts from a request's own text alone, with vLLM's dynamic speculation: fewer drafted tokens the more requests
run.

das rolls out three visits, and knows no responses in the first; other arms the last one, and `stock` all whose lengths
differ. After the timed visits a short rollout is profiled.

Texts are made up, of equal lengths, or recorded. `Forced` lets vLLM's own runner emit them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from das.engine.patches.replace import patch
from das.engine.rollouts.rollout import RolloutRequest, request_seed
from das.engine.settings import STOCK
from das.verify.forced import RAISE
from experiments.arm.data import Text, texts_of
from experiments.gpu.engines import SHAPE, Row, Scale, Verdict, build, kv_tokens, worker_of
from experiments.policies.shapes import shape_of
from experiments.run.errors import RunFailed
from experiments.simulate.workload import made_up_problems
from experiments.training.engines import RecordedEngine, RecordedStockEngine, Recording

SIBLINGS, VISITS = 8, 3
LIVE = (256, 64, 16)  # requests of the made-up texts
PROMPT, LENGTH = 256, 192  # tokens of a made-up prompt, and response
SEATS, CONTEXT, LONGEST = 64, 2048, 512  # of the recorded texts: requests, tokens of a prompt, of the longest response


@dataclass(frozen=True)
class Work:
    """Responses to the same problems in some visits. Token 0 occurs nowhere, and `end` only at the end of a response.

    prompts: of each request. Siblings stand one behind the other, with prompts of their own, because a prompt that
    requests share is read from the device's cache, which makes long contexts look cheap."""

    name: str
    end: int
    prompts: Sequence[Sequence[int]]
    recording: Recording

    @property
    def lengths(self) -> set[int]:
        """The lengths of the responses in tokens."""
        return {len(text) for texts in self.recording.responses.values() for text in texts}

    def first_tokens(self, count: int) -> "Work":
        """Returns responses that end after so many tokens."""
        short = {
            problem: [[*text[: min(count, len(text)) - 1], self.end] for text in texts]
            for problem, texts in self.recording.responses.items()
        }
        return replace(self, recording=replace(self.recording, responses=short))

    def request(self, visit: int, stops: bool) -> RolloutRequest:
        """Return the request of a visit. Its limit of tokens is the same for all, so that no budget can learn the
        length of a response. stops: whether responses end at `end`."""
        from vllm import SamplingParams

        ends, count = [self.end] if stops else [], len(self.prompts)
        return RolloutRequest(
            [{"prompt_token_ids": list(prompt)} for prompt in self.prompts],
            # TRL asks for log-probs
            SamplingParams(temperature=1.0, logprobs=0, max_tokens=max(self.lengths), stop_token_ids=ends),
            [f"{i // SIBLINGS}" for i in range(count)],
            seeds=[request_seed(0, visit, i) for i in range(count)],
            step=visit,
            next_history_tick=visit + 1,
        )


def works(scale: Scale) -> list[Work]:
    """Return the texts. Recorded responses are cut to the same fraction, so their lengths keep their proportions. Long
    prompts stand for the contexts that whole responses would have."""
    vocabulary = scale.pick(shape_of(SHAPE).vocabulary, None) or 512
    prompt, length = scale.pick((PROMPT, LENGTH), (12, 24))
    made = [_work(f"{live} made up", vocabulary, _made_up(live, length - 1), prompt) for live in scale.pick(LIVE, (8,))]
    seats, context, longest = scale.pick((SEATS, CONTEXT, LONGEST), (8, 40, 48))
    if scale.recorded is None:
        rng = np.random.default_rng(0)  # a stand-in: skewed lengths, a third of the longest on average
        texts = [[text[: 1 + int(longest * rng.random() ** 2)] for text in own] for own in _made_up(seats, longest)]
        return [*made, _work(f"{seats} made up, own lengths", vocabulary, texts, context)]
    texts = texts_of(scale.recorded, seats // SIBLINGS, SIBLINGS * VISITS, longest, vocabulary - 1)
    texts = [[text[:-1] for text in own] for own in texts]
    return [*made, _work(f"{seats} recorded, own lengths", vocabulary, texts, context)]


def _made_up(live: int, length: int) -> list[list[Text]]:
    made = made_up_problems(live // SIBLINGS, SIBLINGS * VISITS, length, seed=0)
    return [[text.tolist() for text in own] for _, own in made]


def _work(name: str, vocabulary: int, texts: Sequence[Sequence[Text]], prompt: int) -> Work:
    """Makes the work of the responses to each problem. prompt: tokens of each prompt."""
    end = vocabulary - 1
    responses = {
        f"{i}": [[*(1 + token % (end - 1) for token in text), end] for text in own] for i, own in enumerate(texts)
    }
    prompts = [[2 + i, *range(1, prompt)] for i in range(len(texts) * SIBLINGS)]
    return Work(name, end, prompts, Recording(responses, SIBLINGS, 1))


CUDA = torch.cuda.is_available()


class Forced:
    """Lets the verifier of vLLM's own model runner emit recorded text, and counts what it verifies."""

    def __init__(self, llm: Any):
        self._runner = runner = worker_of(llm).model_runner
        self._forced: torch.Tensor | None = None  # the token of each row of logits, in a pass
        patch(runner, "sample", self._sample)
        patch(runner.model, "compute_logits", self._logits)

    def begin(self, texts: Sequence[Sequence[int]], prompt: int, first: int) -> None:
        """Begin a rollout. texts: of its requests. prompt: tokens of each prompt. first: the first request's number."""
        device = self._runner.device
        self._texts = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True).to(device)
        self._prompt, self._first = prompt, first
        self.passes = self.rows_verified = 0  # passes of each request that emit; drafted tokens in them

    def _sample(self, original: Any, hidden_states: Any, batch: Any, *rest: Any) -> Any:
        computed = batch.num_computed_tokens_np + batch.num_scheduled_tokens
        self.passes += int((computed >= batch.prefill_len_np).sum())
        self.rows_verified += batch.num_draft_tokens
        numbers = [int(name.partition("-")[0]) - self._first for name in batch.req_ids]
        owner = torch.from_numpy(np.repeat(numbers, np.diff(batch.cu_num_logits_np))).to(self._texts.device)
        at = batch.positions[batch.logits_indices] + 1 - self._prompt
        self._forced = self._texts[owner, at.clamp(0, self._texts.shape[1] - 1)]
        try:
            return original(hidden_states, batch, *rest)
        finally:
            self._forced = None

    def _logits(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        logits = original(*args, **kwargs)
        if self._forced is not None:
            logits[torch.arange(len(logits), device=logits.device), self._forced] += RAISE
        return logits


@contextmanager
def profile(llm: Any, passes: range, found: dict[str, float]) -> Iterator[None]:
    """Inside the `with` block, profile these steps of the engine, and fill `found` (device_times)."""
    engine, step = llm.llm_engine, llm.llm_engine.step
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA if CUDA else torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=passes.start - 1, warmup=1, active=len(passes), repeat=1),
        on_trace_ready=lambda profiler: found.update(device_times(profiler.events())),
    ) as profiler:
        engine.step = lambda: (step(), profiler.step())[0]
        try:
            yield
        finally:
            engine.step = step


def device_times(events: Any) -> dict[str, float]:
    """Return in what shares of the time of a profile the device computes, and waits for drafts (`wait_for_drafts`)."""
    kind = torch.autograd.DeviceType.CUDA if CUDA else torch.autograd.DeviceType.CPU
    kernels = [each for each in events if each.device_type == kind and not each.is_user_annotation]
    span = max(each.time_range.end for each in kernels) - min(each.time_range.start for each in kernels)
    shares = {"device_share": 0.0, "wait_share": 0.0}
    for each in kernels:
        alone = each.self_device_time_total if CUDA else each.self_cpu_time_total
        shares["wait_share" if "wait_for_drafts" in each.name else "device_share"] += alone / span
    return shares


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
    """Time one arm (experiments/gpu/check_gpu.py)."""
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
        self.llm, self.arm, self.keyed = llm, arm, arm in ("das", "none")
        self.engine = (RecordedEngine if self.keyed else RecordedStockEngine)(llm)
        self.forced = Forced(llm) if arm == "ngram" else None

    def roll_out(self, work: Work, visit: int) -> Row:
        """Roll out a visit. Returns its line. Raises RunFailed if other tokens come, or of stock another number."""
        self.engine.recording, request = work.recording, work.request(visit, self.keyed)
        texts = work.recording.of(request)
        if self.forced is not None:
            self.forced.begin(texts, len(work.prompts[0]), self.llm.request_counter.counter)
        rollout = self.engine.roll_out(request)[1]
        report, passes = rollout.report, rollout.report.passes
        rows = sum(report.step_tokens) - sum(report.step_live)
        if self.forced is not None:
            rows, passes = self.forced.rows_verified, self.forced.passes
            if rollout.responses != texts:
                raise RunFailed(f"{work.name}: other tokens than were to be emitted")
        return {
            **{"arm": self.arm, "work": work.name, "visit": visit + 1, "tokens": rollout.tokens},
            **{"rollout_s": rollout.rollout_s, "ms_a_pass": 1e3 * rollout.rollout_s / report.decode_steps},
            **{"tokens_per_pass": rollout.tokens / passes, "rows_verified": rows},
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


# ---- passes ----

# Tokens of context -> live requests. The keys and values of 64 requests with 8k tokens take 77 GB.
CONTEXTS: dict[int, tuple[int, ...]] = {350: (1, 16, 64, 256), 2048: (1, 16, 64), 8192: (1, 16, 64)}
CPU_CONTEXTS: dict[int, tuple[int, ...]] = {16: (1, 2), 48: (1, 2), 96: (1, 2)}
DRAFTS, PASSES, ROOM = (0, 2, 4, 8), 10, 256  # drafted tokens of each request; timed passes; tokens of a response


def passes(scale: Scale) -> Verdict:
    """Time the passes, and fit the forms of task=calibrate to them."""
    from experiments.measure.calibrate import RandomDrafter, timed_combination
    from experiments.run.run_folder import device_name
    from experiments.simulate.times import write_latency

    live_of, drafts_of, count = scale.pick(CONTEXTS, CPU_CONTEXTS), scale.pick(DRAFTS, (0, 2)), scale.pick(PASSES, 3)
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
