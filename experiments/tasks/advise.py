"""task=advise: estimate from recorded rollouts whether speculation pays, in under a minute, and write a page.

It answers twice: for the recorded lengths, and for contexts of some 350 tokens, as in the one measurement on a GPU
(docs/benchmarks.md): the longer the contexts, the more of a pass reads keys and values, which drafted tokens share.

result.json: baseline; arms.NAME.{rollout_s, low_s, high_s, step_s, rollout_change, low_change, high_change,
step_change, tokens_per_pass}; short, the same; changes_by_step, change_over_visits, pays_up_to, pays_up_to_dearer,
advice, speedup_by_live, break_even, seconds. advice.html: the page, in one file.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from analysis import page
from das.drafter import HistoryDrafter
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig
from experiments.simulate.engine import Engine, Step, roll_out
from experiments.simulate.gpu_times import gpu_times
from experiments.simulate.rollouts import is_text, read_rollouts
from experiments.simulate.text_engine import Arm, TextEngine
from experiments.simulate.times import PassTimes, PassWork, Priced, Scaled, Table, Times, read_latency
from experiments.simulate.workload import Workload, workload

DOUBT = 0.3  # drafted tokens may be dearer or cheaper than the times say, by this share
WORTH = 0.03  # a smaller gain of rollout time is not worth a change of settings
LIVE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)  # requests per engine that are considered
ASKED = (16, 64, 256)  # requests per engine of which the break-even is printed
SHORT_PROMPT, SHORT = 256, 192  # tokens of prompt and response in the measurement on a GPU: 350 on average
# Throughput that vLLM's flag for batch invariance costs, as shares: .13 measured with an 8B shape and 64 requests on an
# H200 (docs/benchmarks.md), .35 upstream with a 1.7B policy on an H20.
INVARIANCE_COST = (0.13, 0.35)
FIXED = {"name": "fixed", "tokens": 16}
DAS = Arm({"name": "marginal", "tokens": 32, "ratio": 230.0})
OTHERS = {"suffix-like": Arm(FIXED, partial(HistoryDrafter, min_prob=0.1)), "das, fixed 16": Arm(FIXED)}
Row = dict[str, float]


@dataclass(frozen=True)
class ChosenTimes:
    """Times of passes, and their source in words. stock: those of vLLM as it comes; None: unknown."""

    das: PassTimes
    stock: PassTimes | None
    source: str


def chosen_times(task: Any) -> ChosenTimes:
    """Return the times of decode passes: those that the settings step_ms or latency say, which were measured, or else
    those computed for the GPU and the model size. Raises UserError for impossible ones."""
    drafting = float(task.draft_us) * 1e-6  # of each request, beside measured times
    if task.step_ms is not None:
        try:
            if any(len(pair) != 2 for pair in task.step_ms):
                raise ValueError("pairs of two numbers are needed")
            table = Table(tuple(tokens for tokens, _ in task.step_ms), tuple(ms / 1e3 for _, ms in task.step_ms))
        except ValueError as error:
            raise UserError(f"task.step_ms=[[tokens, milliseconds], ...]: {error}") from error
        return ChosenTimes(Times(table, draft_request=drafting), None, "measured step times")
    if task.latency is not None:
        form, source = read_latency(Path(task.latency))
        return ChosenTimes(Times(form, draft_request=drafting), None, source)
    times = gpu_times(task.gpu, task.model)
    source = f"{task.model} on {times.gpus} x {task.gpu} by physics (experiments/simulate/gpu_times.py)"
    return ChosenTimes(times, replace(times, das=False), f"{source}, derived, not measured")


@dataclass(frozen=True)
class Case:
    """The rollouts of one engine, to be simulated. Each simulated request stands for `scale` real requests."""

    works: Sequence[Workload]  # responses of the sampled steps, one entry for each step
    times: ChosenTimes
    scale: float
    max_num_seqs: int  # real requests that the engine decodes at once
    max_tokens: int  # longest response

    @property
    def baseline(self) -> str:
        """The name of the arm without drafts: vLLM as it comes if its times are known."""
        return "none" if self.times.stock is None else "stock"

    def plain(self) -> list[Step]:
        """Simulate the arm without drafts."""
        return roll_out(self.engine(Arm(), self.times.stock or self.times.das), self.works)

    def engine(self, arm: Arm, times: PassTimes | None = None) -> Engine:
        """Make an engine that drafts as the arm says. times: None for das's."""
        scaled, seats = Scaled(times or self.times.das, self.scale), max(1, round(self.max_num_seqs / self.scale))
        arm = replace(arm, ahead=self.times.stock is not None)
        return arm.engine(scaled, seats, self.max_tokens, stands_for=self.scale)

    def short(self) -> "Case":
        """The same problems with contexts of some 350 tokens: prompts of 256, the first 192 tokens of each response."""
        works = [workload(w.problems, [w.response(i)[:SHORT] for i in range(len(w))], SHORT_PROMPT) for w in self.works]
        return replace(self, works=works)


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Simulate every arm on a sample of the rollouts. Prints both answers and a line of advice, and writes the page."""
    start = time.perf_counter()
    progress = Progress(0)
    case, facts = build(config.task)
    run_folder = RunFolder(Path(folder), config.resolved)  # after the input was checked: a failure leaves no folder
    for line in facts:
        progress.note(line)
    plain, steps, others = case.plain(), in_doubt(case), {name: case.engine(arm) for name, arm in OTHERS.items()}
    # Rollouts are 64.3 % of a step in EfficientRollout's 7B run (58-71 %).
    rest = 1 / 0.643 - 1 if config.task.rest_s is None else config.task.rest_s / seconds(plain)
    arms = {case.baseline: summary([plain] * 3, plain, rest), "das": summary(steps, plain, rest)}
    arms |= {name: summary([roll_out(engine, case.works)] * 3, plain, rest) for name, engine in others.items()}
    short_case = case.short()
    short_plain = short_case.plain()
    short = {"das": summary(in_doubt(short_case), short_plain, rest)}
    fixed = others["das, fixed 16"]
    assert isinstance(fixed, TextEngine)
    gains = accepted_by_limit(fixed)
    curve = speedup_by_live(gains, case)
    even = [break_even(gains, case, live) for live in ASKED]
    by_step = [step.rollout_s / none.rollout_s - 1 for step, none in zip(steps[1], plain, strict=True)]
    over_visits = change_over_visits(steps[1], plain, config.task.visits)
    pays, pays_dearer = (pays_up_to([(live, gain[k]) for live, *gain in curve]) for k in (0, 1))
    text = advice(arms["das"], pays, pays_dearer, case.baseline)
    lengths = np.concatenate([work.lengths for work in case.works])
    answers = [
        answer(f"its own lengths (mean {lengths.mean():.0f} tokens)", arms["das"], case.baseline),
        answer("contexts of 350 tokens (the first 192 of each response)", short["das"], case.baseline),
    ]
    found = [
        f"{live} live requests: {needed:.2f} tokens a pass break even with {case.baseline}, {emitted:.2f} were accepted"
        for live, needed, emitted in even
    ]
    found += [*visit_lines(by_step, config.task.visits, over_visits), *map(arm_line, arms.items()), *answers]
    for line in found:
        progress.note(line)
    result = {
        "baseline": case.baseline,
        "arms": arms,
        "short": short,
        "changes_by_step": by_step,
        "change_over_visits": over_visits,
        "pays_up_to": pays,
        "pays_up_to_dearer": pays_dearer,
        "advice": text,
        "speedup_by_live": curve,
        "break_even": even,
        "seconds": time.perf_counter() - start,
    }
    timelines = {case.baseline: plain[-1].timelines[0], "das": steps[1][-1].timelines[0]}
    page.write_advice(
        Path(folder) / "advice.html", [text, *answers], [*facts, *found], arms, curve, timelines, case.scale
    )
    progress.note(text)
    progress.note(f"page: {folder}/advice.html")
    progress.note(f"result: {run_folder.write_result(result)}")


def in_doubt(case: Case) -> list[list[Step]]:
    """Simulate das with drafted tokens that are cheaper by the share DOUBT, as expected, and dearer by DOUBT."""
    priced = (Priced(case.times.das, price) for price in (1 - DOUBT, 1.0, 1 + DOUBT))
    return [roll_out(case.engine(DAS, times), case.works) for times in priced]


def build(task: Any) -> tuple[Case, list[str]]:
    """Make the case that the settings describe. Returns it with lines about it for the user. Raises UserError."""
    if task.rollouts is None:
        raise UserError(
            "task.rollouts=PATH is missing: give a run's folder, a JSONL file or a folder of them "
            "(experiments/simulate/rollouts.py)"
        )
    steps = read_rollouts(Path(task.rollouts), group=int(task.group), prompt=int(task.prompt))
    longest = max(int(work.lengths.max()) for work in steps)
    if longest > task.max_tokens:
        raise UserError(f"task.max_tokens={task.max_tokens}, but a response has {longest} tokens: raise the limit")
    recorded = len(steps)
    per_engine = int(task.batch) / int(task.engines)
    steps = sample(steps, int(task.tokens), max(1, round(per_engine)))
    scale = max(1.0, per_engine / len(steps[-1]))
    times = chosen_times(task)
    tokens = sum(len(work.tokens) for work in steps)
    lines = [
        f"rollouts: {task.rollouts}; steps: {recorded}; simulated: {len(steps)}, of {len(steps[-1])} responses; "
        f"{tokens} tokens, mean {tokens / sum(len(w) for w in steps):.0f}, longest {longest}",
        f"engines: {task.engines}, each with {per_engine:.0f} requests per step, {task.max_num_seqs} at once; a "
        f"simulated request stands for {scale:g} real one{'s' * (scale != 1)}",
        f"time of a pass: {times.source}",
    ]
    if is_text(Path(task.rollouts)):
        lines.append(
            "the responses are text, so a word counts as a token; there are more real tokens, and times are longer"
        )
    if recorded == 1:
        lines.append(
            "there is only one step, so no history; with task.group=G every G responses of a problem form a step"
        )
    known = [work.sampling_of(i) is not None for work in steps for i in range(len(work))]
    if not all(known):
        lines.append(
            f"{known.count(False)} of {len(known)} recorded responses have no distributions of this policy's tokens: "
            "das drafts from their tokens alone"
        )
    return Case(steps, times, scale, int(task.max_num_seqs), int(task.max_tokens)), lines


def sample(steps: list[Workload], tokens: int, requests: int, epochs: int = 4) -> list[Workload]:
    """Cut the recorded steps down to about `tokens` tokens in all, `requests` requests a step, at most `epochs` steps.

    Siblings are the responses to one problem in one step. Only problems of the last recorded step are taken, as many as
    fit, each with its last `epochs` groups of siblings. Step k of the sample holds the k-th of these groups of every
    problem, whichever step recorded it. A group of more than `requests` siblings is cut.
    """
    groups: dict[str, list[tuple[Workload, list[int]]]] = {problem: [] for problem in steps[-1].problems}
    for work in steps:
        members = work.members()
        for problem in groups.keys() & members.keys():
            groups[problem].append((work, members[problem]))
    chosen: list[list[tuple[Workload, list[int]]]] = []  # the last groups of each chosen problem
    tokens_used = requests_used = 0
    for problem in groups:
        last_groups = [(work, ids[:requests]) for work, ids in groups[problem][-epochs:]]
        tokens_used += sum(int(work.lengths[ids].sum()) for work, ids in last_groups)
        requests_used += max(len(ids) for _, ids in last_groups)
        if chosen and (tokens_used > tokens or requests_used > requests):
            break
        chosen.append(last_groups)
    sampled = []
    for steps_left in range(max(map(len, chosen)), 0, -1):
        parts = [last_groups[-steps_left] for last_groups in chosen if len(last_groups) >= steps_left]
        names = [work.problems[i] for work, ids in parts for i in ids]
        responses = [work.response(i) for work, ids in parts for i in ids]
        sampling = [work.sampling_of(i) for work, ids in parts for i in ids]
        sampled.append(workload(names, responses, steps[-1].prompt, sampling))
    return sampled


def seconds(steps: Sequence[Step]) -> float:
    """Return the mean rollout time of the steps, in seconds."""
    return float(np.mean([step.rollout_s for step in steps]))


def change_over_visits(steps: Sequence[Step], plain: Sequence[Step], visits: float | None) -> float | None:
    """Return the change of rollout time in a training that visits each problem so often, 1.2 times for example: once,
    and a fifth of the problems twice. Later visits are taken to be like the last one that was simulated.

    steps: of the visits, the first one first. plain: the same without speculation. visits: None returns None.
    """
    if visits is None:
        return None
    drafted_s = plain_s = 0.0
    for visit in range(ceil(visits)):
        share, place = min(1.0, visits - visit), min(visit, len(steps) - 1)
        drafted_s += share * steps[place].rollout_s
        plain_s += share * plain[place].rollout_s
    return drafted_s / plain_s - 1


def visit_lines(changes: Sequence[float], visits: float | None, over_visits: float | None) -> list[str]:
    """Return what each visit of a problem brings, and what so many of them do together."""
    by_visit = ", ".join(f"{change:+.0%}" for change in changes)
    lines = [f"das, visit by visit of a problem: {by_visit} (the first has no history of it)"]
    if over_visits is not None:
        lines.append(f"your data are seen {visits:g} times: expect {over_visits:+.0%}")
    return lines


def arm_line(arm: tuple[str, Mapping[str, float]]) -> str:
    """Return an arm's name and row in a line."""
    name, row = arm
    return (
        f"{name:<14s} rollout {row['rollout_s']:8.2f} s ({row['rollout_change']:+.1%}{page.span(row)})  "
        f"step {row['step_s']:8.2f} s ({row['step_change']:+.1%})  "
        f"tokens/pass {row['tokens_per_pass']:.2f}"
    )


def summary(steps: Sequence[Sequence[Step]], plain: Sequence[Step], rest: float) -> Row:
    """Return the mean times of an arm's rollouts and steps, and their changes. The part of a step outside the rollout
    is taken to be as long as without speculation (Amdahl's law).

    steps: of the arm if drafted tokens are cheaper, as expected, and dearer. plain: the steps without speculation.
    rest: the time of a step outside the
    rollout, divided by the time of the rollout without speculation.
    """
    plain_s, *each_s = (seconds(arm) for arm in (plain, *steps))
    low_s, expected_s, high_s = min(each_s), each_s[1], max(each_s)  # a budget that rests may rest at one price alone
    return {
        "rollout_s": expected_s,
        "low_s": low_s,
        "high_s": high_s,
        "step_s": expected_s + rest * plain_s,
        "rollout_change": expected_s / plain_s - 1,
        "low_change": low_s / plain_s - 1,
        "high_change": high_s / plain_s - 1,
        "step_change": (expected_s + rest * plain_s) / (plain_s + rest * plain_s) - 1,
        "tokens_per_pass": sum(s.tokens for s in steps[1]) / sum(s.passes for s in steps[1]),
    }


@dataclass(frozen=True)
class Accepted:
    """What drafts of at most 1, 2, ... tokens bring, for each limit: tokens that a request emits in a pass, and tokens
    that it verifies."""

    emitted: np.ndarray
    sent: np.ndarray


def accepted_by_limit(engine: TextEngine) -> Accepted:
    """Return what drafts brought in the engine's last step, for each limit of their length."""
    drafted = np.cumsum(engine.drafts_of[::-1])[::-1][1:] / engine.drafts_of.sum()  # share with at least j tokens
    accepted = np.cumsum(engine.accepts_of[::-1])[::-1][1:] / engine.accepts_of.sum()
    return Accepted(1 + np.cumsum(accepted), np.cumsum(drafted))


def _pass_seconds(times: PassTimes, gains: Accepted, case: Case, live: int) -> tuple[float, np.ndarray]:
    """Return the seconds of a pass without drafts, by the times of the baseline, and of passes with drafts, for each
    limit of `gains`. Responses are half written."""
    context = round(live * (float(np.mean(case.works[-1].lengths)) / 2 + case.works[-1].prompt))
    plain = PassWork(live, 0, context, live)
    with_drafts = [
        times.seconds(replace(plain, drafted=round(live * sent), emitted=round(live * emitted), asked=live))
        for sent, emitted in zip(gains.sent, gains.emitted, strict=True)
    ]
    return (case.times.stock or case.times.das).seconds(plain), np.array(with_drafts)


def speedup_by_live(gains: Accepted, case: Case) -> list[tuple[int, float, float]]:
    """Compute for each number of live requests how much faster decoding is with drafts.

    Returns (live requests of an engine, expected speedup, speedup if drafted tokens are dearer). Each speedup is
    that of the best draft limit. It assumes the lengths and the acceptance that drafts had in the last step.
    """

    def gain(times: PassTimes, live: int) -> float:
        plain, with_drafts = _pass_seconds(times, gains, case, live)
        return float(np.max(gains.emitted * plain / with_drafts))

    das, dearer = case.times.das, Priced(case.times.das, 1 + DOUBT)
    return [(live, gain(das, live), gain(dearer, live)) for live in LIVE]


def break_even(gains: Accepted, case: Case, live: int) -> tuple[int, float, float]:
    """Return the live requests, the tokens that a request must emit in a pass so that drafts cost no time, and those
    that it emitted, at the best draft limit."""
    plain, with_drafts = _pass_seconds(case.times.das, gains, case, live)
    best = int(np.argmax(gains.emitted / with_drafts))
    return live, float(with_drafts[best] / plain), float(gains.emitted[best])


def pays_up_to(curve: Sequence[tuple[int, float]]) -> int:
    """Return the largest number of live requests at which drafts are worth it: there and at all smaller numbers of the
    curve, the speedup is at least 1 + WORTH. 0 if the first number fails already.

    curve: (live requests, speedup), by rising live requests.
    """
    return max((live for live, _ in takewhile(lambda point: point[1] >= 1 + WORTH, curve)), default=0)


def advice(das: Mapping[str, float], pays: int, pays_dearer: int, baseline: str) -> str:
    """Return one line of advice. It is "turn it on" if drafts are expected to save time, and cost no time even if
    drafted tokens are dearer.

    das: the row of the arm. pays, pays_dearer: see pays_up_to. baseline: the arm that das is compared with.
    """
    gain, certain_gain = -das["rollout_change"], -das["high_change"]
    more = ""
    if baseline == "stock":
        ratio = 1 - gain
        low, high = (ratio / (1 - cost) for cost in INVARIANCE_COST)
        more = (
            f" With exact=bits it takes {low:.2f} to {high:.2f} of stock's time: its kernels cost "
            f"{INVARIANCE_COST[0]:.0%} of throughput with 8B on an H200 and {INVARIANCE_COST[1]:.0%} with 1.7B on an "
            "H20. Step times are derived: measure yours (task.step_ms)."
        )
    if gain >= WORTH and certain_gain >= 0:
        return (
            f"Turn it on with arm=das: rollouts should take {gain:.0%} less time than {baseline} "
            f"({certain_gain:.0%} to {-das['low_change']:.0%}), whole steps {-das['step_change']:.0%} less; it pays "
            f"{where(pays, pays_dearer)}.{more}"
        )
    if gain >= WORTH:
        return (
            f"Do not turn it on yet: rollouts should take {gain:.0%} less time than {baseline}, but "
            f"{-certain_gain:.0%} more if drafted tokens are dearer; it pays {where(pays, pays_dearer)}.{more}"
        )
    return (
        f"Do not turn it on: speculation from history changes rollout time by {-gain:+.0%}; it pays "
        f"{where(pays, pays_dearer)}, and {das['tokens_per_pass']:.2f} tokens per pass do not make up for what drafts "
        f"cost.{more}"
    )


def answer(lengths: str, das: Mapping[str, float], baseline: str) -> str:
    """Return one of the two answers: the time that das takes for these lengths, in words."""
    return (
        f"For {lengths}: das takes {1 + das['rollout_change']:.2f} ({1 + das['low_change']:.2f} to "
        f"{1 + das['high_change']:.2f}) of {baseline}'s rollout time, at {das['tokens_per_pass']:.2f} tokens a pass"
    )


def where(pays: int, pays_dearer: int) -> str:
    """Return in words up to how many live requests per engine drafting pays. pays, pays_dearer: results of `pays_up_to`
    at the expected price of drafted tokens and at a dearer one."""

    def up_to(live: int) -> str:
        return f"up to about {live} live requests per engine" if live else "at no number of live requests"

    if pays == pays_dearer == LIVE[-1]:
        return f"at every number of live requests per engine that was considered, up to {LIVE[-1]}"
    if pays == pays_dearer:
        return up_to(pays)
    return f"{up_to(pays)}{' and more' * (pays == LIVE[-1])} ({pays_dearer} if drafted tokens are dearer)"
