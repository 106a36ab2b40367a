"""DraftRound by itself, and through its two callers: the engine's proposer and the simulator's text engine."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from das.budget import BudgetPolicy, LiveRequest, TargetPass, make_budget
from das.budget.policies import Fixed, count_emitted
from das.draft_round import DraftRound, RowsAhead
from das.drafter import Drafts, HistoryDrafter
from das.drafter.distributions import NO_PAIR, PAIRS, Distributions
from das.drafter.thread import Late
from das.engine import proposer
from das.engine.requests import Pass, Request, Requests
from das.engine.settings import WORKER
from das.verify.admission import LIMIT_KEY, PROBLEM_KEY
from das.verify.layout import Remembered
from experiments.simulate.engine import simulate_rollout
from experiments.simulate.text_engine import PROMPT, TextEngine
from experiments.simulate.times import Drafting, Times
from experiments.simulate.workload import Sampling, Workload, made_up_problems, workload

MAX_TOKENS = 400
STOP = 5000  # last token of every response; the texts have smaller ones
# Sums and differences of these times are exact in floating point, so both callers see the very same seconds.
TIMES = Times(Drafting(2**-7, 2**-13, 2**-9, 2**-12), prefill=2**-17, draft_request=2**-16)
BUDGETS: dict[str, dict[str, Any]] = {
    "fixed": {"name": "fixed", "tokens": 7},
    "marginal": {"name": "marginal", "tokens": 16, "ratio": 64},
}


class Recorder:
    """Stands before a drafter or a budget, and writes down every call in a list that they share. `trace`, which the
    engine's reports alone ask for, is no part of drafting.
    """

    def __init__(self, wrapped: Any, calls: list[Any]) -> None:
        self.wrapped, self.calls = wrapped, calls

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # DraftRound asks whether a drafter is one that remembers distributions
        return type(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.wrapped, name)
        if not callable(value) or name == "trace":
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            seen = [snapshot(arg) for arg in args]
            result = value(*args, **kwargs)
            self.calls.append((name, seen, kwargs, snapshot(result)))
            return result

        return call


def snapshot(value: Any) -> Any:
    """A copy that can be compared. A request's `limit` is left out: only the real engine's requests have one."""
    if isinstance(value, LiveRequest):
        return value.name, value.problem, value.generated, value.num_drafted, value.num_accepted
    if isinstance(value, Drafts):
        return [(draft.tokens, draft.probs) for draft in (value[row] for row in range(len(value)))]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [snapshot(item) for item in value] if isinstance(value, list | tuple) else value


def record(draft_round: DraftRound) -> list[Any]:
    """The calls to come, of drafter and budget, in one list."""
    calls: list[Any] = []
    owner: Any = draft_round
    owner.drafter, owner.budget = Recorder(draft_round.drafter, calls), Recorder(draft_round.budget, calls)
    return calls


def work_of(epoch: int) -> Workload:
    """Responses of uneven lengths, each ended by STOP; every second epoch repeats the first."""
    random = np.random.default_rng(epoch % 2)
    texts = [
        (name, text) for name, group in made_up_problems(3, 6, 200, seed=1) for text in group[3 * (epoch % 2) :][:3]
    ]
    responses = [[*text[: int(random.integers(0, 200))].tolist(), STOP] for _, text in texts]
    sampling = [sampled(np.array(response), 100 * epoch + i) for i, response in enumerate(responses)]
    return workload([name for name, _ in texts], responses, prompt=20, sampling=sampling)


def sampled(tokens: np.ndarray, seed: int) -> Sampling:
    """Made-up distributions of a response: some unknown, some of one token, the others of up to four."""
    random = np.random.default_rng(seed)
    rows = random.integers(0, STOP, (len(tokens), PAIRS)).astype(np.uint32) << 5 | 7
    rows[:, 0] = tokens << 5 | random.integers(0, 7, len(tokens))
    rows[random.random(rows.shape) < 0.3] = NO_PAIR
    return Sampling(Distributions.of(tokens, rows), seed)


def make_proposer(budget: dict[str, Any], remember: str) -> proposer.DasProposer:
    return proposer.DasProposer(
        SimpleNamespace(
            additional_config={"das": {"drafter": {"min_prob": 0.02, "remember": remember}, "budget": budget}},
            compilation_config=SimpleNamespace(max_cudagraph_capture_size=None, cudagraph_capture_sizes=[]),
            speculative_config=SimpleNamespace(num_speculative_tokens=make_budget(budget).max_draft_tokens),
            model_config=SimpleNamespace(max_model_len=10_000, get_vocab_size=lambda: 2**15),
            parallel_config=SimpleNamespace(worker_cls=WORKER),
        )
    )


def arrived(requests: Requests, name: str, prompt: Sequence[int] = (1, 2, 3), **params: Any) -> Request:
    """A request as vLLM announces it."""
    given = {"extra_args": {}, "seed": 0, "max_tokens": 50, "temperature": 1.0, "ignore_eos": True}
    ids, sampling = list(prompt), SimpleNamespace(**given | {"stop_token_ids": []} | params)
    new = SimpleNamespace(
        req_id=name, sampling_params=sampling, prompt_token_ids=ids, prompt_len=len(ids), prefill_token_ids=ids
    )
    (request,) = requests.add(SimpleNamespace(scheduled_new_reqs=[new]))
    return request


def run_like_vllm(
    drafting: proposer.DasProposer,
    work: Workload,
    max_num_seqs: int,
    pass_ends: list[float],
    everyone: list[Request],
) -> tuple[int, int, int]:
    """One rollout whose target model emits the recorded responses. Returns passes, drafted and accepted tokens.

    pass_ends: when each pass ends. everyone: gets all requests.
    """
    drafting.begin_rollout(len(work))
    waiting, rows, drafts = deque(range(len(work))), [], {}
    requests = Requests(64, 10_000)
    remembered, starts = work.remembered, work.starts
    assert remembered is not None
    passes = num_drafted = num_accepted = 0
    for ended in pass_ends:
        while waiting and len(rows) < max_num_seqs:
            i = waiting.popleft()
            prompt, problem = range(PROMPT, PROMPT + work.prompt), {PROBLEM_KEY: work.problems[i]}
            params = {"extra_args": problem, "seed": work.sampling[i].seed, "max_tokens": MAX_TOKENS}
            everyone.append(arrived(requests, str(i), prompt, stop_token_ids=[STOP], **params))
            rows.append(i)
        emitted, drafted = [], [len(drafts.get(i, [])) for i in rows]
        places = []  # of the first token that each request emits
        for i in rows:
            output = requests.known[str(i)].output_token_ids
            places.append(int(starts[i]) + len(output))
            text = [*work.response(i).tolist(), 0][len(output) :]  # vLLM samples one more token after an accepted stop
            draft, good = drafts.get(i, []), 0
            while text[good : good + 1] == draft[good : good + 1] != []:
                good += 1
            emitted.append(text[: good + 1])
            output += emitted[-1]
            good = min(good, len(text) - 2)  # the response ends inside the pass
            passes, num_drafted, num_accepted = passes + 1, num_drafted + len(draft), num_accepted + good
        shown = np.concatenate([np.arange(at, at + n + 1) for at, n in zip(places, drafted, strict=True)])
        pairs = Remembered(remembered[np.minimum(shown, len(remembered) - 1)], np.array(drafted))
        known = [requests.known[str(i)] for i in rows]
        proposed = drafting.propose(Pass(known, emitted, drafted, [ended], [pairs]))
        drafts = dict(zip(rows, proposed, strict=True))
        over = [str(i) for i in rows if STOP in requests.known[str(i)].output_token_ids]
        rows = [i for i in rows if str(i) not in over]
        requests.finish(SimpleNamespace(finished_req_ids=over))
    assert not rows
    assert not waiting
    return passes, num_drafted, num_accepted


@pytest.mark.parametrize(
    ("budget", "max_num_seqs", "remember"), [("fixed", 2, "distributions"), ("marginal", 64, "tokens")]
)
def test_proposer_and_text_engine_draft_the_same(budget: str, max_num_seqs: int, remember: str) -> None:
    """On the same text and times, both make the same drafter and budget calls with the same answers, in order.

    What the proposer notes for the record are the distributions and seeds of the text.
    """
    drafter = HistoryDrafter(min_prob=0.02, remember=remember)
    engine = TextEngine(TIMES, max_num_seqs, drafter, make_budget(BUDGETS[budget]), MAX_TOKENS)
    real = make_proposer(BUDGETS[budget], remember)
    simulated_calls, real_calls = record(engine.draft_round), record(real.draft_round)
    for epoch in range(3):
        work = work_of(epoch)
        step = simulate_rollout(work, [engine], [range(len(work))], epoch + 1)
        pass_ends = step.timelines[0]["time_s"].tolist()
        everyone: list[Request] = []
        assert run_like_vllm(real, work, max_num_seqs, pass_ends, everyone) == (
            step.passes,
            engine.num_drafted,
            engine.num_accepted,
        )
        for request, sampling in zip(everyone, work.sampling, strict=True):
            noted = real.noted(request)
            assert sampling is not None
            assert noted["distributions"] == (None if remember == "tokens" else sampling.distributions.text())
            assert noted["seed"] == (None if remember == "tokens" else sampling.seed)
        real.end_live()
        real.draft_round.drafter.end_rollout(epoch + 1)
        real.end_rollout()
    # Only the proposer asks what a pass should take, and what to record; and budgets and drafters, whose steps end in
    # another order, know nothing of each other.
    left_out = ("predict", "end_step", "move_window", "end_rollout", "remembered")
    ours, theirs = ([call for call in calls if call[0] not in left_out] for calls in (simulated_calls, real_calls))
    assert ours == theirs
    assert any(call[0] == "observe_pass" for call in ours)
    assert any(call[0] == "trim" and any(call[3]) for call in ours)


def test_passes_at_rest_that_are_read_together_count_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two responses ends with its second token, and the asynchronous engine has run it once more."""
    one_by_one = [([[i], [last]], [1.5 + i]) for i, last in enumerate((8, 9, 1))]
    together = [([[0, 1, 2], [8, 9, 1]], [1.5, 2.5, 3.5])]
    seen: list[list[TargetPass]] = [[], []]
    for passes, told in zip((one_by_one, together), seen, strict=True):
        drafting, requests = make_proposer(BUDGETS["fixed"], "tokens"), Requests(8, 10_000)
        live = [arrived(requests, name, stop_token_ids=[9]) for name in "cd"]
        drafting.propose(Pass(live, [[7], [7]], [0, 0], [1.0]))
        monkeypatch.setattr(drafting.draft_round.budget, "observe_pass", told.append)
        for tokens, ended in passes:
            drafting.observe(Pass(live, tokens, [0, 0], ended))
        counts = [(request.generated, request.num_accepted, request.stopped) for request in drafting.live]
        assert counts == [(4, 0, False), (3, 0, True)]
        assert drafting.record.measured_s == [0.5, 1.0, 1.0]
        requests.finish(SimpleNamespace(finished_req_ids="cd"))
        drafting.end_over()
        assert drafting.draft_round.drafter.history_tokens == 7
    assert len(seen[0]) == 3
    assert [replace(done, context=0) for done in seen[1]] == [replace(done, context=0) for done in seen[0]]


def test_a_pass_is_planned_from_what_the_budget_chose_in_the_last_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all that was drafted goes to the device, where the pass was launched before drafts were known."""
    drafting, requests = make_proposer(BUDGETS["fixed"], "tokens"), Requests(8, 10_000)
    live = [arrived(requests, name, extra_args={} if name == "c" else {LIMIT_KEY: 0}) for name in "abc"]
    drafts = Drafts(np.array([[5, 6, 7, 8]], np.int32), np.full((1, 4), 0.5), np.array([4]))
    late = Late(np.zeros((3, 5)), np.zeros((3, 5)), np.zeros(3), np.zeros(1))
    told: list[TargetPass] = []
    monkeypatch.setattr(drafting.draft_round.budget, "observe_pass", told.append)
    for number, (chosen, verified, one, two) in enumerate([(4, 0, 4, 8), (1, 4, 2, 5), (1, 3, 2, 4), (0, 2, 0, 0)], 1):
        proposal = SimpleNamespace(drafts=drafts, counts=[chosen]) if chosen else None
        monkeypatch.setattr(drafting.draft_round, "propose", lambda *args, proposal=proposal: proposal)
        drafting.propose_late(Pass(live, [[7]] * 3, [0, 0, verified], [float(number)]), number, late)
        assert late.counts.tolist() == [0, 0, 4 if chosen else 0], "all of them: the device chooses"
        assert late.tokens[2, : int(late.counts[2])].tolist() == ([5, 6, 7, 8] if chosen else [])
        assert (drafting.rows_ahead(1), drafting.rows_ahead(2)) == (one, two), "for each request the mean of rounds"
    assert [done.num_drafted for done in told] == [4, 3, 2], "the budget hears of rows, not of tokens"


class Greedy(BudgetPolicy):
    """Wants more than anyone allows; writes down what it hears."""

    max_draft_tokens = 100

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.passes: list[TargetPass] = []
        self.steps = 0

    def limits(self, live: Any) -> list[int]:
        return [100] * len(live)

    def observe_pass(self, done: TargetPass) -> None:
        self.passes.append(done)

    def end(self, request: LiveRequest) -> None:
        self.ended.append(request.name)

    def end_step(self) -> None:
        self.steps += 1


def test_a_draft_is_cut_to_what_may_still_come() -> None:
    """By the caller's longest draft, the sender's limit, the tokens left, and the context left; never below 0."""
    draft_round = DraftRound(HistoryDrafter(min_prob=0.0), Greedy(), max_draft_tokens=12)
    text = list(range(50)) * 2
    requests = [
        LiveRequest("free", "p", 1000),
        LiveRequest("limited", "p", 1000, limit=3),
        LiveRequest("nearly over", "p", 105),
        LiveRequest("context full", "p", 1000),
        LiveRequest("over", "p", 50),
    ]
    for request in requests:
        draft_round.begin(request, [7, 8], earlier_tokens=text[:99])
    assert requests[0].generated == 99
    assert count_emitted(requests, [text[99:]] * 5, [5] * 5) == 0
    draft_round.observe(requests, [text[99:]] * 5, [])
    assert [(r.generated, r.num_drafted, r.num_accepted) for r in requests] == [(100, 5, 0)] * 5
    proposal = draft_round.propose(requests, room=[50, 50, 50, 2, 50])
    assert proposal is not None
    assert proposal.counts == [12, 3, 4, 2, 0]
    assert proposal.drafts[0].tokens == list(range(12))
    assert draft_round.propose(requests, room=[0] * 5) is None
    assert draft_round.propose(requests[-1:]) is None
    assert not draft_round.declined, "nothing may come, so it was not the budget that let nobody draft"


@pytest.mark.parametrize("live", [1, 85, 86, 256, 767, 768, 800])
def test_a_pass_has_no_more_rows_than_fit_and_the_likeliest_tokens_have_them(live: int) -> None:
    drafter = HistoryDrafter(min_prob=0.0)
    draft_round = DraftRound(drafter, Greedy(), max_draft_tokens=8, max_rows=768)
    requests = [LiveRequest(str(i), "p", 1000) for i in range(live)]
    for request in requests:
        draft_round.begin(request, [7, 8], earlier_tokens=list(range(50)) * 2)
    proposal = draft_round.propose(requests)
    counts = [0] * live if proposal is None else proposal.counts
    assert sum(counts) == min(8 * live, max(0, 768 - live))
    if proposal is not None:
        gains = drafter.propose_batch([request.name for request in requests], [8] * live).probs.cumprod(axis=1)
        is_kept = np.arange(8) < np.array(counts)[:, None]
        assert gains[is_kept].min() >= gains[~is_kept].max(initial=0)


def test_the_rows_of_a_late_pass_are_the_mean_of_the_last_rounds_and_fill_a_graph() -> None:
    ahead = RowsAhead((8, 16, 32))
    assert ahead.of(4, 99) == 0
    for chosen in (400, 8, 8, 8, 16):  # the first is too long ago
        ahead.note(4, chosen)
    assert ahead.of(4, 99) == 12, "10 of 4 requests: a graph of 16 rows"
    assert ahead.of(2, 99) == 6
    assert ahead.of(4, 3) == 3
    assert ahead.of(32, 99) == 80, "no graph is as large"
    ahead.note(4, 0)
    assert ahead.of(4, 99) == 0


def test_who_is_not_kept_leaves_no_trace() -> None:
    budget = Greedy()
    draft_round = DraftRound(HistoryDrafter(), budget)
    requests = [LiveRequest(name, "p", 100) for name in ("kept", "dropped")]
    for request in requests:
        draft_round.begin(request, [1])
    done = TargetPass(2, 0, 0, 2, 1e-3)
    draft_round.observe(requests, [[5], [6]], [done])
    draft_round.observe([], [], [done])  # a pass of requests that the drafter does not know
    assert budget.passes == [done, done]
    for request in requests:
        draft_round.end(request, keep=request.name == "kept")
    draft_round.budget.end_step()
    assert (budget.ended, budget.steps) == (["kept"], 1)
    assert draft_round.drafter.history_tokens == 1
    draft_round.drafter.end_rollout(1000)
    assert draft_round.drafter.history_tokens == 0


def test_no_drafts_are_asked_for_where_the_budget_gives_none() -> None:
    draft_round = DraftRound(HistoryDrafter(), make_budget({"name": "none"}))
    assert draft_round.max_draft_tokens == 1
    request = LiveRequest("a", "p", 100)
    draft_round.begin(request, [1])
    assert draft_round.propose([request]) is None
    assert draft_round.declined, "the alarm about a rollout without drafts names the budget"
    assert DraftRound(HistoryDrafter(), Fixed(9)).max_draft_tokens == 9


@pytest.mark.parametrize(
    ("limits", "trimmed", "message"),
    [
        ([4], [1, 1], r"Odd.limits returned 1 numbers for 2 requests"),
        ([4, 4], [1], r"Odd.trim returned \[1\] for drafts of"),
        ([4, 4], [1, -1], r"Odd.trim returned \[1, -1\] for drafts of"),
        ([4, 4], [1, 99], r"Odd.trim returned \[1, 99\] for drafts of"),
    ],
)
def test_a_budgets_wrong_numbers_are_named(limits: list[int], trimmed: list[int], message: str) -> None:
    class Odd(Fixed):
        def limits(self, live: Sequence[LiveRequest]) -> list[int]:
            return limits

        def trim(self, live: Sequence[LiveRequest], drafts: Any) -> list[int]:
            return trimmed

    draft_round = DraftRound(HistoryDrafter(), Odd(4))
    requests = [LiveRequest(name, "p", 100) for name in "ab"]
    for request in requests:
        draft_round.begin(request, [1])
        draft_round.observe([request], [[1, 2, 3] * 4], [])
    with pytest.raises(ValueError, match=message):
        draft_round.propose(requests)
